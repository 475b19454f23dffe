"""What the pool does when workers hang, die or talk nonsense."""

import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rl_jax.rewards import RewardPool, Verdict

FUNCTIONS = """
import os, signal, stat, sys, time

def hangs(completion):
    while completion == "hang": pass
    return 1.0

def sleeps(completion, row_secs=0.0):
    time.sleep(row_secs)
    return 1.0

def dies(completion):
    if completion == "die": os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0

def waits_once(completion):
    # Hangs in the first worker that gets it and says which that is.
    if os.path.exists(completion): return 1.0
    with open(completion, "w") as file: file.write(str(os.getpid()))
    time.sleep(100)

def garbles(completion):
    if completion != "garble": return 1.0
    for fd in range(3, 9):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b"garbage\\n")
        except OSError: pass
    time.sleep(100)

def raises(completion):
    if completion == "raise": raise ValueError("no such level")
    return 1.0

def batch(completions, **kwargs):
    if len(completions) > 1 and "hang" in completions: time.sleep(100)
    if "raise" in completions: raise ValueError("no such level")
    if "die" in completions: os.kill(os.getpid(), signal.SIGSEGV)
    if completions == ["hang"]: time.sleep(100)
    return [float(len(completions))] * len(completions)

held = []
def grows(completion):
    if completion == "much": held.append(b"x" * (200 << 20))
    return 1.0

def modules(completion):
    return {"value": float("jax" in sys.modules), "detail": ",".join(sys.modules)}
"""


def pool_of(tmp_path, *names, timeout_secs=20.0, num_workers=2, **options):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    functions = [name if name == "maths" else f"{path}:{name}" for name in names]
    weights = [1.0] * len(names)
    return RewardPool(
        functions,
        weights,
        num_workers=num_workers,
        timeout_secs=timeout_secs,
        **options,
    )


def job(completion, answer="", **row):
    return {
        "prompt": "",
        "completion": completion,
        "answer": answer,
        "row": row,
        "num_tokens": 1,
        "truncated": False,
        "data_source": "",
    }


def drain(pool, secs=60.0):
    """Every score that is pending, by ticket; fails if one is missing or double."""
    scores, deadline = {}, time.monotonic() + secs
    while pool.pending and time.monotonic() < deadline:
        for ticket, score in pool.wait(1.0):
            assert ticket not in scores
            scores[ticket] = score
    assert pool.pending == 0
    return scores


def until(condition, secs=30.0):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid):
    try:
        state = (
            pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):  # gone, or just going
        return False
    return state != "Z"


def test_two_hangs_among_many_cost_their_own_time_only(tmp_path):
    with pool_of(tmp_path, "hangs", timeout_secs=0.5) as pool:
        start = time.monotonic()
        for ticket in range(64):
            pool.submit(ticket, job("hang" if ticket in (5, 40) else ""))
        scores = drain(pool)
        assert time.monotonic() - start < 30.0
        for ticket, score in scores.items():
            hung = ticket in (5, 40)
            assert score.verdict == (Verdict.TIMEOUT if hung else Verdict.CORRECT)
            assert score.value == (0.0 if hung else 1.0)
        assert 0.5 <= scores[5].seconds < 5.0
        assert scores[5].parts == {"hangs": 0.0} and "hangs" in scores[5].detail
        assert pool.stats()["timeouts"] == pool.stats()["restarts"] == 2


def test_the_clock_does_not_run_while_a_job_queues(tmp_path):
    with pool_of(tmp_path, "sleeps", timeout_secs=1.5, num_workers=1) as pool:
        for ticket in range(8):
            pool.submit(ticket, job("", row_secs=0.3))
        scores = drain(pool)
    assert {score.verdict for score in scores.values()} == {Verdict.CORRECT}


def test_what_waits_behind_a_slow_sample_is_done_by_others(tmp_path):
    with pool_of(tmp_path, "sleeps", timeout_secs=20.0) as pool:
        start = time.monotonic()
        for ticket in range(9):
            pool.submit(ticket, job("", row_secs=3.0 * (ticket == 0)))
        done = dict(pool.wait(20.0))
        while len(done) < 8:
            done.update(pool.wait(20.0))
        assert set(done) == set(range(1, 9)) and time.monotonic() - start < 2.0
        assert drain(pool)[0].value == 1.0
        assert pool.stats()["finished"] == 9 and pool.stats()["retries"] == 0


def test_what_waits_behind_a_hanging_sample_is_not_blamed(tmp_path):
    with pool_of(tmp_path, "hangs", timeout_secs=0.6, num_workers=1) as pool:
        for ticket in range(20):
            pool.submit(ticket, job("hang" if ticket in (0, 3, 4) else ""))
        scores = drain(pool)
    hung = [t for t, score in scores.items() if score.verdict == Verdict.TIMEOUT]
    assert sorted(hung) == [0, 3, 4] and len(scores) == 20


def test_what_came_before_the_function_that_hung_is_kept(tmp_path):
    with pool_of(tmp_path, "dies", "hangs", "raises", timeout_secs=0.3) as pool:
        pool.submit(0, job("hang"))
        score = drain(pool)[0]
    assert score.value == 0.0
    assert score.parts == {"dies": 1.0, "hangs": 0.0, "raises": None}


def test_a_hanging_grade_of_the_algebra_is_killed(tmp_path):
    options = {"options": {"guard": False}, "timeout_secs": 1.0}
    with pool_of(tmp_path, "maths", **options) as pool:
        for ticket in range(12):
            answer = "(((12!)!)!)!" if ticket == 3 else str(ticket)
            pool.submit(ticket, job(rf"\boxed{{{answer}}}", str(ticket)))
        scores = drain(pool)
    assert scores[3].verdict == Verdict.TIMEOUT
    assert all(score.value == 1.0 for t, score in scores.items() if t != 3)


def test_a_worker_killed_from_outside_costs_no_sample(tmp_path):
    file = tmp_path / "started"
    with pool_of(tmp_path, "waits_once") as pool:
        pool.submit(0, job(str(file)))
        until(lambda: file.exists() and file.read_text())
        os.kill(int(file.read_text()), signal.SIGKILL)
        score = drain(pool)[0]
        assert (score.value, score.verdict) == (1.0, Verdict.CORRECT)
        assert pool.stats()["retries"] == pool.stats()["restarts"] == 1


def test_a_text_that_kills_its_worker_twice_is_a_crash(tmp_path):
    with pool_of(tmp_path, "dies") as pool:
        for ticket in range(6):
            pool.submit(ticket, job("die" if ticket == 2 else ""))
        scores = drain(pool)
        assert (scores[2].value, scores[2].verdict) == (0.0, Verdict.CRASH)
        assert "SIGSEGV in dies" in scores[2].detail
        assert all(score.value == 1.0 for t, score in scores.items() if t != 2)
        assert pool.stats()["crashes"] == 1


def test_garbage_on_the_protocol_is_an_infrastructure_fault(tmp_path):
    with pool_of(tmp_path, "garbles") as pool:
        pool.submit(0, job("garble"))
        pool.submit(1, job(""))
        scores = drain(pool)
        assert (scores[0].value, scores[0].verdict) == (None, Verdict.INFRASTRUCTURE)
        assert "protocol" in scores[0].detail
        assert scores[1].value == 1.0
        assert pool.stats()["retries"] == 1


def test_a_users_bug_is_none_and_counted_never_zero(tmp_path):
    with pool_of(tmp_path, "raises") as pool:
        pool.submit(0, job("raise"))
        pool.submit(1, job(""))
        scores = drain(pool)
        assert (scores[0].value, scores[0].verdict) == (None, Verdict.INFRASTRUCTURE)
        assert "ValueError: no such level" in scores[0].detail
        assert scores[1].value == 1.0
        stats = pool.stats()
        assert stats["errors"] == 1 and "no such level" in stats["last_error"]
        assert stats["retries"] == 1
        assert stats["restarts"] == 0


def test_a_batch_that_fails_is_taken_apart(tmp_path):
    bad = {3: "hang", 5: "raise", 9: "die"}
    with pool_of(tmp_path, "batch", timeout_secs=0.4) as pool:
        for ticket in range(12):
            pool.submit(ticket, job(bad.get(ticket, "")))
        scores = drain(pool)
    assert scores[3].verdict == Verdict.TIMEOUT
    assert scores[5].verdict == Verdict.INFRASTRUCTURE
    assert scores[9].verdict == Verdict.CRASH
    assert all(s.value == 1.0 for t, s in scores.items() if t not in bad)


def test_a_function_that_wants_them_gets_many_jobs_at_once(tmp_path):
    with pool_of(tmp_path, "batch", num_workers=1) as pool:
        for ticket in range(40):
            pool.submit(ticket, job(""))
        values = [score.value for score in drain(pool).values()]
    assert max(values) > 1 and len(values) == 40


def test_workers_never_import_jax(tmp_path):
    with pool_of(tmp_path, "maths", "modules") as pool:
        pool.submit(0, job(r"\boxed{\sqrt{8}}", r"2\sqrt{2}"))
        score = drain(pool)[0]
    assert score.parts == {"maths": 1.0, "modules": 0.0}
    assert not {"jax", "flax", "numpy"} & set(score.detail.split(","))


def test_when_no_worker_can_be_started_any_more_jobs_become_none(tmp_path):
    with pool_of(tmp_path, "dies", num_workers=1) as pool:
        (tmp_path / "functions.py").write_text("raise RuntimeError('broken since')")
        pids = pool.pids
        until(lambda: len(pool.pids) == 2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)))
        pool.submit(0, job(""))
        score = drain(pool)[0]
        assert (score.value, score.verdict) == (None, Verdict.INFRASTRUCTURE)
        assert pool.stats()["restarts"] >= 2


def test_workers_are_recycled_without_loss(tmp_path):
    with pool_of(tmp_path, "dies", recycle_jobs=3) as pool:
        for ticket in range(20):
            pool.submit(ticket, job(""))
        assert len(drain(pool)) == 20
        stats = pool.stats()
    assert stats["recycled"] >= 20 // 3 - 2 and stats["retries"] == 0


def test_a_worker_that_grows_is_recycled_however_large_the_trainer_is(tmp_path):
    trainer = b"x" * (400 << 20)
    with pool_of(tmp_path, "grows", recycle_bytes=100 << 20, num_workers=1) as pool:
        for ticket in range(3):
            pool.submit(ticket, job("much" if ticket == 0 else ""))
        drain(pool)
        # It goes after its last score was handed out.
        until(lambda: pool.stats()["recycled"] == 1)
    assert len(trainer)


def test_neither_processes_nor_descriptors_pile_up(tmp_path):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def children():
        path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        return pathlib.Path(path).read_text().split()

    def run():
        with pool_of(tmp_path, "dies", recycle_jobs=2) as pool:
            for ticket in range(12):
                pool.submit(ticket, job("die" if ticket % 6 == 0 else ""))
            drain(pool)
            until(lambda: len(pool.pids) == 3)
            return pool.pids

    gc.collect()  # what earlier tests left is not counted
    before = descriptors(), children()
    pids = run()
    gc.collect()
    assert not any(map(is_alive, pids))
    assert (descriptors(), children()) == before


@pytest.mark.slow
def test_hangs_among_many_samples_cost_no_more_than_their_share(tmp_path):
    limit = 1.0
    with pool_of(tmp_path, "hangs", timeout_secs=limit) as pool:
        start = time.monotonic()
        for ticket in range(256):
            pool.submit(ticket, job("hang" if ticket % 32 == 7 else ""))
        scores = drain(pool)
        secs = time.monotonic() - start
    assert sum(s.verdict == Verdict.TIMEOUT for s in scores.values()) == 8
    assert max(s.seconds for s in scores.values()) < limit + 0.5
    assert secs < 8 * limit / 2 + 5.0


@pytest.mark.slow
@pytest.mark.parametrize("count", [600, 10_000])
def test_many_grades_with_hangs_leave_nothing_behind(tmp_path, monkeypatch, count):
    """10,000 take over two minutes: each hang costs 0.2 s and a new worker."""
    own = pathlib.Path(f"/proc/{os.getpid()}")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))

    def state():
        children = (own / "task" / str(os.getpid()) / "children").read_text()
        return len(list((own / "fd").iterdir())), children.split()

    def rss_bytes():
        return int((own / "statm").read_text().split()[1]) * resource.getpagesize()

    gc.collect()
    before = state()
    options = {"timeout_secs": 0.2, "recycle_jobs": 40}
    with pool_of(tmp_path, "maths", "hangs", **options) as pool:
        for ticket in range(200):
            pool.submit(ticket, job(rf"\boxed{{{ticket}}}", str(ticket)))
        assert len(drain(pool, 120.0)) == 200
        taken = rss_bytes()
        for ticket in range(count):
            answer = "hang" if ticket % 100 == 50 else rf"\boxed{{{ticket}}}"
            pool.submit(ticket, job(answer, str(ticket)))
        scores = drain(pool, 400.0)
        timeouts = [t for t, s in scores.items() if s.verdict == Verdict.TIMEOUT]
        assert len(scores) == count and len(timeouts) == count // 100
        assert all(scores[t].value == 2.0 for t in scores if t % 100 != 50)
        until(lambda pool=pool: len(pool.pids) == 3)
        pids, grown = pool.pids, rss_bytes() - taken
        assert pool.stats()["recycled"] > 0
    pool = None  # it keeps one descriptor, so that waking it late harms nobody
    gc.collect()
    assert not any(map(is_alive, pids)) and state() == before
    assert list(folder.iterdir()) == []
    assert grown < 64 << 20  # a score is a few hundred bytes


def test_workers_die_with_a_trainer_that_is_killed(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    script = f"""
        import time
        from rl_jax.rewards import RewardPool
        if __name__ == "__main__":
            functions = ["{tmp_path}/functions.py:hangs"]
            pool = RewardPool(functions, [1.0], num_workers=2, timeout_secs=600)
            for ticket in range(4):
                pool.submit(ticket, {{"prompt": "", "completion": "hang", "row": {{}}}})
            while len(pool.pids) < 3: time.sleep(0.01)
            time.sleep(0.2)
            print(*pool.pids, flush=True)
            time.sleep(600)
    """
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 3 and all(map(is_alive, pids))
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    until(lambda: not any(map(is_alive, pids)), secs=10.0)
