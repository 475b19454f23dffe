"""Whole runs with all that remembers switched on: resumed, they are the same run."""

import json
import shutil
import signal
import tempfile
import types

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import reward_marker
from rl_jax.checkpoint import Checkpointer
from rl_jax.learner import with_reference
from rl_jax.models.params import abstract_params
from rl_jax.stages import context as contexts
from rl_jax.stages import curriculum, rl, run_state
from rl_jax.stages.context import Preempted

STEPS = 6
REWARDS = """
def digits(completion, **_):
    return float(sum(c.isdigit() for c in completion[:16]) >= 3)

def short(completion, **_):
    return 1.0 - len(completion) / 100

def spaces(completion, **_):
    return completion.count(" ") / 16
"""
EVERYTHING = {
    "rl__steps": STEPS,
    "rl__data__num_problems": 5,
    "rl__rollout__prompts_per_step": 2,
    "rl__optim__lr": 0.01,
    "rl__optim__warmup_steps": 0,
    "rl__checkpoint__every": 1,
    "rl__checkpoint__keep": STEPS + 1,
    "rl__eval__every": 0,
    "rl__log__samples_every": 0,
    "rl__objective__dynamic_sampling": "true",
    "rl__objective__max_refills": 1,
    "rl__objective__kl_coef": 0.1,
    "rl__objective__reference_every": 2,
    "rl__curriculum__retire_at": 0.5,
    "rl__curriculum__reenter_after": 3,
    "rl__curriculum__draw": "uncertain",
    "rl__reward__weights": "1.0,0.5",
    "rl__reward__model_weight": 0.25,
    "rl__reward__steps": "short=2-4,model=3",
    "rl__reward__hidden_gap": 0.001,
}


class Judge:
    """Likes even ids; stops the run in a step, as a signal would."""

    def __init__(self, context, stop_at):
        self._stop, self._stop_at, self._path = context.stop, stop_at, context.workdir

    def score(self, pieces):
        lines = self._path / "rl" / "metrics.jsonl"
        if self._stop_at and lines.exists():
            if len(lines.read_text().splitlines()) == self._stop_at - 1:
                self._stop._signum = signal.SIGTERM
        return [float(np.mean(piece % 2 == 0)) for piece in pieces]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder of an uninterrupted run, how to run one)"""
    root = tmp_path_factory.mktemp("whole")
    (root / "rewards.py").write_text(REWARDS)
    (root / "model" / "checkpoints").mkdir(parents=True)
    reward_marker.write(root / "model", reward_marker.Marker("ranking", 0.0, 1.0, 1))
    names = [f"{root}/rewards.py:{name}" for name in ("digits", "short", "spaces")]
    changes = EVERYTHING | {
        "rl__reward__functions": ",".join(names[:2]),
        "rl__reward__hidden": names[2],
        "rl__reward__model": str(root / "model"),
    }
    patch = pytest.MonkeyPatch()

    def run(folder, stop_at=0, **more):
        with tiny.built(folder, **changes | more) as context:
            patch.setattr(rl, "open_judge", lambda *_, **__: Judge(context, stop_at))

            def base():
                return contexts.first_params(context)

            rl.run(context, context.run.stages[1], base)

    with tiny.compilation_cache(root / "programs"):
        run(root / "run")
        yield root / "run", run
    patch.undo()


def metrics(folder):
    """Lines of the stage without what depends on the clock or the process."""
    lines = (folder / "rl" / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(x).items() if not k.startswith(("time/", "perf/"))}
        for x in lines
    ]


def saved(folder, step):
    """(weights, reference) of a checkpoint, as NumPy arrays."""
    mesh = tiny.one_device()
    model = contexts.read_model_file(folder)
    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as alone:
        params = abstract_params(model, mesh)
        stage = tiny.rl_stage()
        shutil.copytree(folder / "rl" / "checkpoints" / str(step), f"{alone}/{step}")
        (context,) = tiny.anything(types.SimpleNamespace(model=model, mesh=mesh))
        tx, _ = run_state.optimiser_of(stage, model)
        state = run_state.abstract_state(context, tx)
        with Checkpointer(alone, keep=1) as checkpointer:
            found = checkpointer.restore(with_reference(state, params))
        assert found is not None and found[0] == step
        return jax.device_get((found[1].params, found[1].reference))


def equal(a, b):
    return all(
        jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b))
    )


def position(folder, step):
    path = folder / "rl" / "checkpoints" / str(step) / "position"
    return json.loads(next(p for p in path.iterdir() if p.is_file()).read_text())


def test_everything_that_remembers_has_something_to_remember(whole):
    found = metrics(whole[0])
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert max(line["data/retired"] for line in found) > 0
    assert 0 < found[0]["data/asked_share"] <= found[-1]["data/asked_share"]
    assert all("reward/hidden/spaces" in line for line in found)
    assert not any("train/rewards/hidden/spaces/mean" in line for line in found)
    kept = position(whole[0], STEPS)
    assert len(kept["reward_gap"][0]) == STEPS
    # The memory is there, and says what the metrics said.
    size, summed, _ = kept["curriculum"].split(" ")
    memory = curriculum.decoded(kept["curriculum"], int(size), int(summed), key="")
    assert curriculum.metrics(memory).items() <= found[-1].items()


def test_rewards_count_in_their_steps_and_are_measured_in_all(whole):
    for line in metrics(whole[0]):
        parts = {name: line[f"train/rewards/{name}/mean"] for name in PARTS}
        weights = {"digits": 1.0, "short": 0.5, "model": 0.25}
        if not 2 <= line["step"] <= 4:
            weights["short"] = 0.0
        if line["step"] < 3:
            weights["model"] = 0.0
        want = sum(weights[name] * parts[name] for name in PARTS)
        assert line["train/reward"] == pytest.approx(want, abs=1e-5), line["step"]


PARTS = ("digits", "short", "model")


def test_the_kl_is_zero_right_after_the_policy_became_the_reference(whole):
    kl = [abs(line["train/kl"]) for line in metrics(whole[0])]
    # Steps 1, 3 and 5 begin with a policy that is its own reference.
    assert max(kl[0::2]) < 1e-7 < 1e-5 < min(kl[1::2])
    kept = {step: saved(whole[0], step) for step in range(2, STEPS + 1)}
    for step, (_, reference) in kept.items():
        assert equal(reference, kept[step - step % 2][0]), step
    assert not equal(kept[2][0], kept[4][0])


def test_stopped_in_the_middle_of_a_step_it_is_the_same_run_too(whole, tmp_path):
    folder, run = whole
    with pytest.raises(Preempted) as stopped:
        # Nothing is saved but by the stop, in the fourth step.
        run(tmp_path / "run", stop_at=4, rl__checkpoint__every=0)
    assert stopped.value.code == 143
    steps = [path.name for path in (tmp_path / "run/rl/checkpoints").iterdir()]
    assert "3" in steps and "2" not in steps
    run(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(folder)
    assert equal(saved(tmp_path / "run", STEPS), saved(folder, STEPS))
    assert position(tmp_path / "run", STEPS) == position(folder, STEPS)


@pytest.mark.parametrize(
    "step",
    [pytest.param(k, marks=[] if k == 3 else [pytest.mark.slow]) for k in range(1, 6)],
)
def test_resumed_at_any_step_it_is_the_same_run_to_the_bit(whole, tmp_path, step):
    folder, run = whole
    shutil.copytree(folder, tmp_path / "run")
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(tmp_path / "run" / "rl" / "checkpoints" / str(later))
    run(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(folder)
    assert equal(saved(tmp_path / "run", STEPS), saved(folder, STEPS))
    assert position(tmp_path / "run", STEPS) == position(folder, STEPS)
