"""Parts of a stage at their smallest, real and fake, for tests of what joins them."""

import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.experimental.compilation_cache import (
    compilation_cache as compilation_cache_of_jax,
)
from jax.sharding import Mesh

import tiny_run
from rl_jax import command_line
from rl_jax import config as configs
from rl_jax.data.rows import Row
from rl_jax.load import load
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models import export
from rl_jax.models.params import Leaf, Params, map_layout
from rl_jax.models.spec import ModelSpec
from rl_jax.rewards.score import Score, Verdict
from rl_jax.rollout.sample import Request, Sample
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.scoring import Scored

V, STOP = 17, 3
MODEL = ModelSpec(
    num_layers=1,
    width=12,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    ffn_width=20,
    vocab_size=V,
)


def one_device(*_: Any) -> Mesh:
    """A mesh of one device, whatever mesh is asked for."""
    return make_mesh(devices=jax.devices()[:1])


def run_config(**changes: Any) -> configs.Run:
    """The tiny chain, resolved; changes are keys with __ for each dot."""
    words = tiny_run.arguments("unused", **changes)
    if "model__path" in changes:  # which has sizes of its own
        sizes = tuple(f"--config.{key}=" for key in configs.MODEL_SIZES)
        words = [word for word in words if not word.startswith(sizes)]
    return configs.resolve(command_line.parse(words).config)


def rl_stage(**changes: Any) -> configs.StageConfig:
    """The tiny chain's second stage; changes are its keys with __ for each dot."""
    changes = {f"rl__{key}": value for key, value in changes.items()}
    return run_config(**changes).stages[1]


@contextlib.contextmanager
def built(folder: pathlib.Path, **changes: Any) -> Iterator[Context]:
    """Model and tokenizer of the tiny chain on one device, its mesh set."""
    with mock.patch.object(contexts, "make_mesh", one_device):
        context = contexts.build(run_config(**changes), folder, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


@functools.cache
def trained(base: pathlib.Path) -> tuple[pathlib.Path, list[tuple[str, str]]]:
    """The tiny chain as a user runs it, once a session, in a folder below `base`.

    Returns:
        Its workdir, and the calls from our functions into other packages: pairs of
        package and "caller -> called".
    """
    workdir, calls = base / "tiny_chain", base / "tiny_chain_calls.json"
    script = pathlib.Path(__file__).parent / "calls_into.py"
    arguments = tiny_run.arguments(workdir, **SHORT)
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    done = subprocess.run(
        [sys.executable, str(script), str(calls), *arguments],
        # As a user runs it, but for the time that optimising the programs would take.
        env=tiny_run.environment() | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir, [(call[0], call[1]) for call in json.loads(calls.read_text())]


# Every part runs once: two stages, a step, a checkpoint, an evaluation, a curve. The
# second stage ends with the weights that it began with.
SHORT = {
    "sft__steps": 2,
    "sft__eval__every": 0,
    "rl__steps": 1,
    "rl__optim__lr": 0.0,
    "rl__optim__warmup_steps": 0,
    "rl__eval__every": 1,
}


def exported(workdir: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A Hugging Face folder with the model of a workdir."""
    mesh = one_device()
    with jax.set_mesh(mesh):
        loaded = load(workdir, mesh)
        export.save_params(loaded.params, loaded.model, folder)
    shutil.copytree(workdir / contexts.TOKENIZER_FOLDER, folder, dirs_exist_ok=True)
    return folder


@contextlib.contextmanager
def compilation_cache(folder: pathlib.Path) -> Iterator[None]:
    """Programs compiled inside are kept in a folder and read again."""
    names = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in names.items():
        jax.config.update(name, value)
    compilation_cache_of_jax.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache_of_jax.reset_cache()


def random_params(mesh: Mesh, seed: int, model: ModelSpec = MODEL) -> Params:
    """Weights that need no compiled program to be made."""
    rng = np.random.default_rng(seed)
    return map_layout(functools.partial(random_leaf, rng, mesh), model)


def random_leaf(rng: np.random.Generator, mesh: Mesh, leaf: Leaf) -> jax.Array:
    """The next weight of a tree, float32, as the table lays it out."""
    x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
    x = np.asarray(x + (leaf.fan_in == 0), np.float32)
    return jax.device_put(x, sharding(mesh, *leaf.axes))


def prompt(ids: Sequence[int] = (1, 2), content: str = "", answer: str = "") -> Prompt:
    """A prompt with these ids."""
    message = {"role": "user", "content": content}
    return Prompt(Row((message,), answer, "made_up", 0, {}), tuple(ids))


def scored(
    value: float | None,
    *,
    request: int = 0,
    index: int = 0,
    prompt_ids: Sequence[int] = (1, 2),
    completion: Sequence[int] = (5, STOP),
    logp: Sequence[float] | None = None,
    verdict: Verdict | None = None,
    parts: dict[str, float | None] | None = None,
) -> Scored:
    """A sample with a score; it ended by itself if its last token is STOP."""
    n, m = len(prompt_ids), len(completion)
    sample = Sample(
        request=request,
        index=index,
        tokens=np.array([*prompt_ids, *completion], np.int32),
        policy_mask=np.arange(n + m) >= n,
        sampler_logp=np.array([0.0] * n + list(logp or [-1.0] * m), np.float32),
        version=np.array([-1] * n + [0] * m, np.int32),
        stop_reason="stop" if completion[-1] == STOP else "length",
    )
    if verdict is None:
        verdict = Verdict.CORRECT if value else Verdict.WRONG
    score = Score(value, verdict, parts=parts or {})
    [text] = anything(FakeText())
    return Scored(prompt(prompt_ids), sample, score, text)


def groups(*values: Sequence[float | None], **kwargs: Any) -> list[Scored]:
    """Scored samples of groups with these rewards, in order."""
    return [
        scored(value, request=request, index=index, **kwargs)
        for request, group in enumerate(values)
        for index, value in enumerate(group)
    ]


def anything(*fakes: Any) -> tuple[Any, ...]:
    """Fakes that may stand where the real thing is declared."""
    return fakes


class FakeText:
    """A tokenizer whose text is the ids, with spaces."""

    stop_ids = (STOP,)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        return " ".join(map(str, ids))


class FakeEngine:
    """Draws [request, index, STOP] for every sample, a few a poll, in any order."""

    def __init__(self, seed: int = 0, log: list[str] | None = None):
        self._random = random.Random(seed)
        self._left: list[tuple[Request, int]] = []
        self.requests: list[Request] = []
        self.log = [] if log is None else log
        self.tokens_drawn, self.handover_bytes, self.handover_secs = 0, 0, 0.0

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        self._left += [(request, i) for i in range(request.num_samples)]
        self._random.shuffle(self._left)

    def poll(self, params: Any, version: int) -> list[Sample]:
        done, self._left = self._left[:3], self._left[3:]
        self.log.append(f"engine gave {len(done)}, busy {self.busy}")
        self.tokens_drawn += 3 * len(done)
        return [
            scored(
                0.0,
                request=request.id,
                index=index,
                prompt_ids=request.prompt,
                completion=(request.id, index, STOP),
            ).sample
            for request, index in done
        ]


class FakePool:
    """Scores by a function of the completion, a few a call, in any order."""

    def __init__(
        self,
        value: Callable[[str], float | None],
        seed: int = 0,
        log: list[str] | None = None,
    ):
        self._value, self._random = value, random.Random(seed)
        self._ready: list[tuple[int, Score]] = []
        self.jobs: dict[int, dict] = {}
        self.log = [] if log is None else log

    def weight(self, source: str) -> float:
        return 1.0

    def submit(self, ticket: int, job: dict) -> None:
        self.log.append("submit")
        self.jobs[ticket] = job
        value = self._value(job["completion"])
        verdict = Verdict.CORRECT if value else Verdict.WRONG
        self._ready.append((ticket, Score(value, verdict)))

    def poll(self) -> list[tuple[int, Score]]:
        return self._take(self._random.randint(0, 1))

    @property
    def pending(self) -> int:
        return len(self._ready)

    def wait(
        self, timeout_secs: float | None = None, *, at_least: int = 1
    ) -> list[tuple[int, Score]]:
        return self._take(2)  # the time may be up before so many are there

    def _take(self, count: int) -> list[tuple[int, Score]]:
        self._random.shuffle(self._ready)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken
