import json
import os
import resource
import subprocess
import sys

from rl_jax.rewards import process, worker
from rl_jax.rewards.score import Score, Verdict


def test_a_function_that_raises_scores_none_with_its_last_line():
    def broken(job):
        raise KeyError("level")

    events = []
    score, num_errors = worker.run(
        {}, {"good": lambda job: Score(1.0, Verdict.CORRECT), "mine": broken},
        {"good": 1.0, "mine": 1.0}, events.append,
    )  # fmt: skip
    assert (score.value, score.verdict) == (None, Verdict.INFRASTRUCTURE)
    assert "KeyError: 'level'" in score.detail and "test_worker.py" in score.detail
    assert num_errors == 1
    assert events == [
        {"start": "good", "parts": {}},
        {"start": "mine", "parts": {"good": 1.0}},
    ]


def test_built_in_functions_run_under_a_memory_limit():
    def greedy(job):
        return Score(float(len(bytearray(1 << 36))), Verdict.CORRECT)

    before = resource.getrlimit(resource.RLIMIT_AS)
    score, _ = worker.run({}, {"maths": greedy}, {"maths": 1.0}, lambda event: None)
    assert "MemoryError" in score.detail
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def talk(functions, jobs):
    """Runs a worker by hand and returns every line that it wrote."""
    settings = {
        "functions": functions,
        "names": functions,
        "weights": [1.0] * len(functions),
        "options": {},
        "path": [],
    }
    lines = [settings, *({"id": i, "job": job} for i, job in enumerate(jobs))]
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.rewards.worker", str(os.getpid())],
        input="\n".join(map(json.dumps, lines)) + "\n",
        capture_output=True,
        text=True,
        env=process._environment(),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_protocol_survives_a_function_that_prints_and_reads(tmp_path):
    path = tmp_path / "noisy.py"
    path.write_text(
        "import os, subprocess\n"
        "def fn(completion):\n"
        '    print(\'{"id": 0, "score": 1}\', flush=True)\n'
        "    os.write(1, b'noise')\n"
        "    subprocess.run(['echo', 'more noise'])\n"
        "    try: input()\n"
        "    except EOFError: return 0.5\n"
    )
    messages, stderr = talk([f"{path}:fn"], [{"prompt": "", "completion": ""}] * 2)
    assert messages[0] == {"ready": True}
    assert [m["score"]["value"] for m in messages if "score" in m] == [0.5, 0.5]
    assert "more noise" in stderr


def test_a_worker_says_why_it_cannot_load_a_function():
    messages, _ = talk(["no_such_module:fn"], [])
    assert len(messages) == 1 and "no_such_module" in messages[0]["error"]


def test_a_worker_whose_parent_is_another_ends_at_once():
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.rewards.worker", "1"],
        stdin=subprocess.DEVNULL,
        env=process._environment(),
        timeout=60,
    )
    assert done.returncode == 1
