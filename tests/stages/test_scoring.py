"""Sampling and scoring at the same time, with engines and pools that are made up."""

import dataclasses
from typing import Any

import pytest

import tiny_stage as tiny
from rl_jax.errors import ConfigError
from rl_jax.rewards.score import Score, Verdict
from rl_jax.rollout.sample import Request
from rl_jax.stages.scoring import (
    Timing,
    check_rows,
    completion_text,
    make_engine,
    make_pool,
    records,
    sample_and_score,
)

TEXT: Any = tiny.FakeText()


def asked(ids=(5, 2, 9), num_samples=3):
    return [
        (Request(i, (1, i), num_samples, 8), tiny.prompt((1, i), f"ask {i}", str(i)))
        for i in ids
    ]


def run(engine, pool, requests, check_stop=lambda: None):
    (params,) = tiny.anything(None)
    return sample_and_score(
        engine, pool, TEXT, params, requests, version=4, check_stop=check_stop
    )


def value(completion):
    request, index = map(int, completion.split())
    return request + index / 10


@pytest.mark.parametrize("seed", range(4))
def test_results_are_in_the_order_of_requests_whatever_finishes_first(seed):
    engine, pool = tiny.FakeEngine(seed), tiny.FakePool(value, seed + 1)
    scored, timing = run(engine, pool, asked())
    want = [(request, i) for request in (5, 2, 9) for i in range(3)]
    assert [(s.sample.request, s.sample.index) for s in scored] == want
    for one in scored:
        assert one.score.value == one.sample.request + one.sample.index / 10
        assert one.prompt.ids == (1, one.sample.request)
        assert one.completion == f"{one.sample.request} {one.sample.index}"
    assert timing.tokens == 27 and timing.sample_secs >= 0 <= timing.wait_secs


def test_samples_are_scored_while_others_are_still_drawn():
    log: list[str] = []
    run(tiny.FakeEngine(0, log), tiny.FakePool(value, 0, log), asked())
    last = log.index("engine gave 3, busy False")
    assert log[:last].count("submit") == 6


def test_a_job_tells_the_reward_all_about_its_sample():
    class Short(tiny.FakeEngine):
        """Ends its samples at the token limit, with 7 and not a stop token."""

        def poll(self, params, version):
            found = super().poll(params, version)
            return [
                tiny.scored(
                    0.0,
                    request=s.request,
                    prompt_ids=(1, s.request),
                    completion=(8, 9, 7),
                ).sample
                for s in found
            ]

    for engine, ids, words, truncated in (
        (tiny.FakeEngine(), [2, 0, tiny.STOP], "2 0", False),
        (Short(), [8, 9, 7], "8 9 7", True),
    ):
        pool = tiny.FakePool(lambda _: 0.0)
        run(engine, pool, asked([2], num_samples=1))
        job = pool.jobs[0]
        assert list(job.pop("prompt_ids")) == [1, 2]
        assert list(job.pop("completion_ids")) == ids
        assert job == {
            "prompt": "1 2",
            "completion": words,
            "answer": "2",
            "answers": ["2"],
            "row": {},
            "num_tokens": 3,
            "truncated": truncated,
            "data_source": "made_up",
        }


def test_only_the_stop_token_is_left_out_of_the_text():
    ended = tiny.scored(0.0, completion=(5, tiny.STOP, 6, tiny.STOP)).sample
    assert completion_text(ended, TEXT) == f"5 {tiny.STOP} 6"
    cut = tiny.scored(0.0, completion=(5, 6)).sample
    assert completion_text(cut, TEXT) == "5 6"
    empty = tiny.scored(0.0, completion=(tiny.STOP,)).sample
    assert completion_text(empty, TEXT) == ""


def test_a_stop_is_noticed_while_sampling_and_while_waiting():
    class StoppedError(Exception):
        pass

    def stop_after(calls):
        left = iter([None] * calls)

        def check():
            if next(left, "stop") == "stop":
                raise StoppedError

        return check

    engine = tiny.FakeEngine()
    with pytest.raises(StoppedError):
        run(engine, tiny.FakePool(value), asked(), stop_after(1))
    assert engine.busy  # in the middle of it

    class Silent(tiny.FakePool):
        def poll(self):
            return []

        def wait(self, timeout_secs=None, *, at_least=1):
            return []

    engine = tiny.FakeEngine()
    with pytest.raises(StoppedError):
        run(engine, Silent(value), asked(), stop_after(20))
    assert not engine.busy


def test_two_requests_with_one_id_are_refused():
    with pytest.raises(AssertionError, match="one id"):
        run(tiny.FakeEngine(), tiny.FakePool(value), asked([2, 2]))


def test_timings_add_up_field_by_field():
    total = Timing(1.0, 2.0, 3) + Timing(0.5, 0.25, 4)
    assert total == Timing(1.5, 2.25, 7)


def test_a_record_says_what_a_person_wants_to_know():
    one = tiny.scored(
        0.5,
        request=7,
        index=2,
        completion=(5, 6),
        verdict=Verdict.WRONG,
        parts={"maths": 0.0, "format": 0.5},
    )
    (record,) = records([one])
    assert record == {
        "request": 7,
        "index": 2,
        "prompt": "",
        "completion": "5 6",
        "answer": "",
        "score": 0.5,
        "parts": {"maths": 0.0, "format": 0.5},
        "verdict": "wrong",
        "detail": "",
        "num_tokens": 2,
        "stop_reason": "length",
    }


def test_the_engine_has_the_sizes_of_the_stage():
    stage = tiny.rl_stage(rollout__top_k=3, rollout__top_p=0.5)
    spec = make_engine(stage, tiny.MODEL, TEXT, tiny.one_device(), 0).spec
    assert (spec.num_slots, spec.prefill_rows, spec.decode_steps) == (8, 2, 4)
    assert (spec.max_prompt_tokens, spec.max_new_tokens) == (64, 16)
    assert (spec.top_k, spec.top_p, spec.stop_ids) == (3, 0.5, (tiny.STOP,))


def test_the_pool_scores_as_the_stage_says():
    stage = tiny.rl_stage(
        reward__functions="maths,format",
        reward__weights="1.0,0.5",
        reward__answer_format="any",
        reward__format_pattern="^so ",
    )
    job = made_up_job("so the answer is 4", "4")
    with make_pool(stage) as pool:
        pool.submit(0, job)
        found: dict[int, Score] = {}
        while not found:
            found.update(pool.wait(30.0))
    assert found[0].parts == {"maths": 1.0, "format": 1.0}
    assert found[0].value == 1.5 and found[0].verdict is Verdict.CORRECT


def made_up_job(completion, answer):
    return {
        "prompt": "",
        "completion": completion,
        "answer": answer,
        "row": {},
        "num_tokens": 1,
        "truncated": False,
        "data_source": "",
    }


def judged(*answers, **reward):
    """Checks rows with these answers as a stage does before it samples."""
    stage = tiny.rl_stage(**{f"reward__{key}": value for key, value in reward.items()})
    prompts = [tiny.prompt(answer=answer) for answer in answers]
    prompts = [
        dataclasses.replace(p, row=dataclasses.replace(p.row, index=i))
        for i, p in enumerate(prompts)
    ]
    with make_pool(stage) as pool:
        check_rows(pool, stage, prompts)


def test_a_row_whose_answer_is_of_no_use_is_named_before_anything_is_sampled():
    judged("1", "2", functions=("number",))
    with pytest.raises(ConfigError, match="Row 2 of made_up: its reference") as error:
        judged("1", "a dozen", "three", functions=("number",))
    assert "2 of 3 rows" in str(error.value)
    assert "--config.rl.reward.check_golds=false" in str(error.value)
    judged("1", "a dozen", functions=("number",), check_golds=False)


def test_a_row_that_no_route_judges_is_named():
    judged("1", routes=("made*=number",))
    with pytest.raises(ConfigError, match="Row 1 of made_up: no reward is set for"):
        judged("1", routes=("gsm8k=gsm8k",))


# A reward model beside the functions.


class FakeJudge:
    """Scores a piece by its ids; keeps what it was asked."""

    def __init__(self, value=lambda piece: float(piece[-2])):
        self._value, self.asked = value, []

    def score(self, pieces):
        self.asked.append([piece.tolist() for piece in pieces])
        return [self._value(piece) for piece in pieces]


class WeighedPool(tiny.FakePool):
    """A pool whose functions count for this much."""

    def __init__(self, value, seed=0, weight=1.0):
        super().__init__(value, seed)
        self._weight = weight

    def weight(self, source):
        return self._weight


def with_judge(judge, *, seed=0, value=lambda text: 0.5, weight=1.0, judge_weight=2.0):
    fakes = tiny.FakeEngine(seed), WeighedPool(value, seed + 1, weight), None
    engine, pool, params = tiny.anything(*fakes)
    scored, _ = sample_and_score(
        engine,
        pool,
        TEXT,
        params,
        asked(),
        version=4,
        check_stop=lambda: None,
        judge=judge,
        judge_weight=judge_weight,
    )
    return scored


@pytest.mark.parametrize("seed", range(3))
def test_a_judge_sees_prompts_and_replies_in_one_order_whatever_finishes_first(seed):
    judge = FakeJudge()
    scored = with_judge(judge, seed=seed)
    # A reply of the fake engine is its request, its index and the stop token.
    want = [[1, r, r, i, tiny.STOP] for r in (5, 2, 9) for i in range(3)]
    assert judge.asked == [want]
    for one in scored:
        assert one.score.parts["model"] == one.sample.index
        assert one.score.value == 0.5 + 2.0 * one.sample.index
        assert one.score.verdict is Verdict.CORRECT


def test_a_judge_of_weight_0_is_measured_only():
    scored = with_judge(FakeJudge(), judge_weight=0.0)
    assert {one.score.value for one in scored} == {0.5}
    assert [one.score.parts["model"] for one in scored[:3]] == [0.0, 1.0, 2.0]


def test_what_the_functions_cannot_judge_has_no_value_unless_none_of_them_counts():
    unjudged = with_judge(FakeJudge(), value=lambda text: None)
    assert {one.score.value for one in unjudged} == {None}
    alone = with_judge(FakeJudge(), value=lambda text: None, weight=0.0)
    assert [one.score.value for one in alone[:3]] == [0.0, 2.0, 4.0]
    neither = with_judge(
        FakeJudge(), value=lambda text: None, weight=0.0, judge_weight=0.0
    )
    assert {one.score.value for one in neither} == {None}


def test_a_judge_that_gives_no_number_stops_the_run():
    with pytest.raises(RuntimeError, match="reward model gave nan"):
        with_judge(FakeJudge(lambda piece: float("nan")))


def test_the_pool_of_a_stage_has_its_hidden_functions():
    stage = tiny.rl_stage(reward__functions="exact", reward__hidden="number")
    with make_pool(stage) as pool:
        pool.submit(0, made_up_job("so 4", "4"))
        found: dict[int, Score] = {}
        while not found:
            found.update(pool.wait(30.0))
    assert found[0].parts == {"exact": 0.0, "hidden/number": 1.0}
    assert found[0].value == 0.0
