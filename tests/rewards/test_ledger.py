import threading
import time

import pytest

from rl_jax.rewards.ledger import Ledger, RewardsFailedError
from rl_jax.rewards.score import Score, Verdict

GOOD = Score(1.0, Verdict.CORRECT, seconds=0.5)


def test_a_ticket_comes_out_once():
    ledger = Ledger()
    ledger.add(7, b"job")
    job = ledger.next()
    assert job is not None and ledger.next() is None
    ledger.finish(job, GOOD)
    assert ledger.pending() == 1
    assert ledger.take() == [(7, GOOD)]
    assert ledger.take() == [] and ledger.pending() == 0


def test_a_pending_ticket_cannot_be_submitted_again():
    ledger = Ledger()
    ledger.add(7, b"job")
    with pytest.raises(ValueError, match="7"):
        ledger.add(7, b"job")


def test_a_job_that_is_tried_again_goes_first():
    ledger = Ledger()
    ledger.add(1, b"")
    ledger.add(2, b"")
    job = ledger.next()
    assert job is not None
    ledger.again(job)
    assert ledger.next() is job
    assert ledger.stats()["retries"] == 1


def test_waiting_ends_when_nothing_is_pending_or_time_is_up():
    ledger = Ledger()
    assert ledger.wait(None) == []
    ledger.add(1, b"")
    assert ledger.wait(0.01) == []


def test_waiting_is_woken_by_a_score():
    ledger = Ledger()
    ledger.add(1, b"")
    job = ledger.next()
    assert job is not None
    threading.Timer(0.05, lambda: ledger.finish(job, GOOD)).start()
    assert ledger.wait(10.0) == [(1, GOOD)]


def test_whoever_waits_for_several_scores_is_not_woken_before_they_are_there():
    ledger = Ledger()
    for ticket in range(3):
        ledger.add(ticket, b"")
    first, second, third = (ledger.next() for _ in range(3))
    assert first and second and third
    ledger.finish(first, GOOD)
    assert ledger.wait(0.01, at_least=2) == [(0, GOOD)]  # the time was up
    ledger.finish(second, GOOD)
    threading.Timer(0.05, lambda: ledger.finish(third, GOOD)).start()
    assert len(ledger.wait(10.0, at_least=2)) == 2  # as many as there are


def test_a_fault_of_the_thread_is_raised_to_everybody():
    ledger = Ledger()
    ledger.stop(KeyError("bug"))
    for call in (ledger.take, lambda: ledger.add(1, b""), lambda: ledger.wait(None)):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(KeyError):
        ledger.wait_ready()


def test_statistics_add_up():
    ledger = Ledger()
    for ticket in range(3):
        ledger.add(ticket, b"")
    time.sleep(0.01)
    for score, num_errors in (
        (GOOD, 0),
        (Score(0.0, Verdict.TIMEOUT, seconds=2.0), 0),
        (Score(None, Verdict.INFRASTRUCTURE, detail="bug"), 1),
    ):
        job = ledger.next()
        assert job is not None
        job.started = time.monotonic()
        ledger.finish(job, score, num_errors)
    stats = ledger.stats()
    assert (stats["submitted"], stats["finished"], stats["none"]) == (3, 3, 1)
    assert stats["verdict/correct"] == stats["timeouts"] == stats["errors"] == 1
    assert stats["grade_secs"] == 2.5
    assert stats["queue_secs"] >= 3 * 0.01
    assert stats["last_error"] == "bug"


def test_batches_are_equal_parts_and_a_job_that_is_to_be_alone_is():
    ledger = Ledger()
    for ticket in range(10):
        ledger.add(ticket, b"")
    first = ledger.next_batch(3, 64)
    assert [job.ticket for job in first] == [0, 1, 2, 3]
    assert len(ledger.next_batch(1, 2)) == 2
    ledger.again(first[0])
    assert [job.ticket for job in ledger.next_batch(1, 64)] == [0]
    assert [job.ticket for job in ledger.next_batch(1, 64)] == [6, 7, 8, 9]
    assert ledger.next_batch(1, 64) == []


def test_a_job_that_was_put_back_is_no_retry():
    ledger = Ledger()
    ledger.add(1, b"")
    job = ledger.next()
    assert job is not None
    ledger.put_back(job)
    assert ledger.next() is job and not job.alone
    assert ledger.stats()["retries"] == 0


def test_too_large_a_share_of_failures_is_raised_to_everybody():
    ledger = Ledger(max_failed_share=0.1)
    failed = Score(None, Verdict.INFRASTRUCTURE, detail="no disk")

    def finish(count, score):
        for ticket in range(count):
            ledger.add(ticket, b"")
            job = ledger.next()
            assert job is not None
            ledger.finish(job, score)

    finish(60, GOOD)
    assert len(ledger.take()) == 60
    finish(6, failed)
    assert len(ledger.take()) == 6
    finish(2, failed)
    with pytest.raises(RewardsFailedError, match="8 of the last 68(.|\n)*no disk"):
        ledger.take()
