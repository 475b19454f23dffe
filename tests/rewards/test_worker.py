import json
import os
import resource
import subprocess
import sys

from rl_jax.rewards import process, worker
from rl_jax.rewards.loading import Loaded
from rl_jax.rewards.score import Score, Verdict

GOOD = Score(1.0, Verdict.CORRECT)


def scores(*found):
    return Loaded(lambda jobs: [found[0]] * len(jobs))


def test_a_function_that_raises_scores_none_with_its_last_line():
    try:
        raise KeyError("level")
    except KeyError as error:
        fault = error
    events = []
    functions = {"good": scores(GOOD), "mine": scores(fault)}
    weights = {"good": 1.0, "mine": 1.0}
    ((score, num_errors),) = worker.run([{}], functions, [weights], events.append)
    assert (score.value, score.verdict) == (None, Verdict.INFRASTRUCTURE)
    assert "KeyError: 'level'" in score.detail and "test_worker.py" in score.detail
    assert num_errors == 1
    assert events == [{"start": "mine", "parts": {"good": 1.0}}]


def test_each_job_is_judged_by_its_own_functions():
    functions = {"a": scores(GOOD), "b": scores(Score(0.5, Verdict.CORRECT))}
    results = worker.run(
        [{}, {}], functions, [{"a": 1.0, "b": 1.0}, {"b": 3.0}], lambda event: None
    )
    assert [score.value for score, _ in results] == [1.5, 1.5]
    assert [set(score.parts) for score, _ in results] == [{"a", "b"}, {"b"}]


def test_shaping_comes_last_sees_the_others_and_has_no_verdict():
    seen = []

    def shape(jobs):
        seen.extend(job["scores"] for job in jobs)
        return [GOOD]

    wrong = Score(0.0, Verdict.WRONG)
    functions = {"format": Loaded(shape), "maths": scores(wrong)}
    weights = [{"format": 0.5, "maths": 1.0}]
    ((score, _),) = worker.run([{}], functions, weights, lambda event: None)
    assert seen == [{"maths": 0.0}]
    assert (score.value, score.verdict) == (0.5, Verdict.WRONG)
    assert list(score.parts) == ["format", "maths"]


def test_form_does_not_pay_where_the_answer_cannot_be_judged():
    none = Score(None, Verdict.UNPARSABLE_GOLD)
    functions = {"maths": scores(none), "format": scores(GOOD)}
    weights = [{"maths": 1.0, "format": 1.0}]
    ((score, _),) = worker.run([{}], functions, weights, lambda event: None)
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)


def test_a_gold_check_asks_no_function_for_a_score():
    def never(jobs):
        raise AssertionError

    functions = {
        "a": Loaded(never),
        "b": Loaded(never, gold_fault=lambda job: "no " * (job["answer"] == "")),
    }
    jobs = [{"check_gold": True, "answer": a} for a in ("1", "")]
    weights = [{"a": 1.0, "b": 1.0}] * 2
    results = worker.run(jobs, functions, weights, lambda event: None)
    assert [score.value for score, _ in results] == [1.0, None]
    assert results[1][0].detail == "b: no "


def test_built_in_functions_run_under_a_memory_limit():
    def greedy(jobs):
        try:
            return [Score(float(len(bytearray(1 << 36))), Verdict.CORRECT)]
        except MemoryError as error:
            return [error]

    before = resource.getrlimit(resource.RLIMIT_AS)
    functions = {"maths": Loaded(greedy)}
    ((score, _),) = worker.run([{}], functions, [{"maths": 1.0}], lambda event: None)
    assert "MemoryError" in score.detail
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def talk(functions, jobs):
    """Runs a worker by hand and returns every line that it wrote."""
    settings = {
        "functions": {name: name for name in functions},
        "weights": dict.fromkeys(functions, 1.0),
        "options": {},
        "path": [],
    }
    lines = [settings]
    lines += [{"jobs": [{"id": i, "job": job}]} for i, job in enumerate(jobs)]
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
    assert messages[0]["ready"] and not messages[0]["batches"]
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
