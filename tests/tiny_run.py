"""The smallest chain that does everything, for tests that run whole stages."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Pays for digits, so that a model that knows nothing already has good and bad samples.
REWARD = f"{ROOT}/tests/tiny_run.py:digits"


def digits(completion: str, **_) -> float:
    """Share of digits among the first 16 characters."""
    return sum(c.isdigit() for c in completion[:16]) / 16


OVERRIDES = {
    "model.num_layers": 1,
    "model.width": 32,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.ffn_width": 48,
    "model.vocab_size": 64,
    "sft.steps": 4,
    "sft.optim.warmup_steps": 0,
    "sft.data.num_problems": 64,
    "sft.batch.rows_per_step": 4,
    "sft.batch.micro_rows": 2,
    "sft.checkpoint.every": 2,
    "sft.eval.every": 4,
    "rl.steps": 6,
    "rl.data.num_problems": 16,
    "rl.rollout.prompts_per_step": 2,
    "rl.rollout.group_size": 4,
    "rl.reward.functions": REWARD,
    "rl.reward.weights": "1.0",
    "rl.batch.micro_rows": 2,
    "rl.batch.updates_per_step": 1,
    "rl.checkpoint.every": 2,
    "rl.eval.every": 3,
    "rl.log.samples_every": 1,
}
for _stage in ("sft", "rl"):
    OVERRIDES |= {
        f"{_stage}.rollout.max_prompt_tokens": 64,
        f"{_stage}.rollout.max_new_tokens": 16,
        f"{_stage}.rollout.slots": 8,
        f"{_stage}.rollout.prefill_rows": 2,
        f"{_stage}.rollout.decode_steps": 4,
        f"{_stage}.batch.row_tokens": 96,
        f"{_stage}.data.num_eval_problems": 8,
        f"{_stage}.eval.num_prompts": 4,
        f"{_stage}.eval.num_samples": 1,
        f"{_stage}.reward.workers": 1,
    }


def arguments(workdir, **changes) -> list[str]:
    """Command line of the chain; changes are keys with __ for each dot."""
    keys = OVERRIDES | {k.replace("__", "."): v for k, v in changes.items()}
    return [
        f"--config={ROOT}/configs/quickstart.py",
        f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]


def environment(cache: pathlib.Path | None = None) -> dict[str, str]:
    """Environment of a trainer on one CPU device."""
    env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
    env.pop("XLA_FLAGS", None)
    if cache is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return env


def start(workdir, cache=None, **changes) -> subprocess.Popen:
    """Starts the trainer as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", "rl_jax.train", *arguments(workdir, **changes)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def metrics(workdir, stage) -> list[dict]:
    """Lines of a stage without what depends on the clock or the process."""
    lines = (pathlib.Path(workdir) / stage / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(x).items() if not k.startswith(("time/", "perf/"))}
        for x in lines
    ]


def run_shipped(
    config: str, workdir: pathlib.Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Runs a shipped config as a user does, on one CPU device."""
    command = [sys.executable, "-m", "rl_jax.train"]
    command += [f"--config={ROOT}/{config}", f"--workdir={workdir}", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True)


def train_shipped(config: str, workdir: pathlib.Path, *words: str) -> None:
    """Trains a shipped config to its end."""
    done = run_shipped(config, workdir, *words)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def first_and_last(workdir: pathlib.Path) -> tuple[dict, dict]:
    """The evaluations before and after the stage `rl`, which are printed too."""
    lines = (workdir / "rl" / "metrics.jsonl").read_text().splitlines()
    found = [x for x in map(json.loads, lines) if "eval/accuracy" in x]
    assert found[0]["step"] == 0 and len(found) > 2
    print(f"{workdir.name}: {found[0]} to {found[-1]}")
    return found[0], found[-1]
