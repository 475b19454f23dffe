"""Which prompts a step asks for, and which samples it keeps."""

import functools

import grain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_stage as tiny
from rl_jax.data.pipeline import Reader
from rl_jax.errors import ConfigError
from rl_jax.objectives.policy import PRESETS
from rl_jax.stages import rl
from rl_jax.stages.scoring import Timing, sample_and_score

GRPO, DAPO = PRESETS["grpo"], PRESETS["dapo"]
G = 4


class Scorer:
    """Scores group i by `values(i)` and keeps what was asked, round by round."""

    def __init__(self, values):
        self._values = values
        self.rounds = []

    def __call__(self, asked):
        self.rounds.append([request.id for request, _ in asked])
        found = [
            tiny.scored(value, request=request.id, index=i)
            for request, _ in asked
            for i, value in enumerate(self._values(request.id))
        ]
        return found, Timing(1.0, 0.25, 10)


def collect(scorer, *, next_row=0, loss=DAPO, **changes):
    changes = {"rollout__group_size": G, **changes}
    stage = tiny.rl_stage(**changes)
    prompts = grain.MapDataset.range(10_000).map(lambda i: tiny.prompt((1, i)))
    with Reader(prompts, next_row) as reader:
        rollout = rl.collect(scorer, reader, stage, loss)
        assert reader.position == rollout.next_row
    return rollout


def kept_groups(rollout):
    return [s.sample.request for s in rollout.scored[::G]]


def split_if(divisible_by):
    """Groups whose number this divides differ within; the others agree."""
    return lambda i: [1.0, 0.0, 0.0, 1.0] if i % divisible_by == 0 else [0.0] * G


# What is asked.


def test_without_dynamic_sampling_one_round_keeps_groups_that_agree_too():
    scorer = Scorer(lambda i: [1.0] * G)
    rollout = collect(scorer, next_row=7, loss=GRPO, rollout__prompts_per_step=3)
    assert scorer.rounds == [[7, 8, 9]]
    assert kept_groups(rollout) == [7, 8, 9]
    assert (rollout.next_row, rollout.refills, rollout.dropped) == (10, 0, 0)


def test_dynamic_sampling_asks_for_as_many_prompts_as_are_missing_in_rounds():
    scorer = Scorer(split_if(3))
    rollout = collect(scorer, next_row=10, rollout__prompts_per_step=4)
    # Only 12, 15 and 18 tell, and at 19 and 20 one is still missing.
    assert scorer.rounds == [[10, 11, 12, 13], [14, 15, 16], [17, 18], [19], [20]]
    assert kept_groups(rollout) == [12, 15, 18]
    assert rollout.refills == 4  # max_refills: 21 is not asked any more


def test_dynamic_sampling_stops_as_soon_as_the_step_is_full():
    scorer = Scorer(split_if(2))
    rollout = collect(scorer, rollout__prompts_per_step=2)
    assert scorer.rounds == [[0, 1], [2]]
    assert kept_groups(rollout) == [0, 2]
    assert (rollout.next_row, rollout.refills, rollout.dropped) == (3, 1, 1)


@pytest.mark.parametrize("max_refills", [0, 1, 3])
def test_dynamic_sampling_gives_up_after_max_refills(max_refills):
    scorer = Scorer(split_if(1000))
    rollout = collect(
        scorer,
        next_row=999,
        rollout__prompts_per_step=2,
        objective__max_refills=max_refills,
    )
    assert len(scorer.rounds) == 1 + max_refills == 1 + rollout.refills
    assert kept_groups(rollout) == [1000]
    # Dropped prompts were asked too: the next step does not ask them again.
    assert rollout.next_row == 999 + sum(map(len, scorer.rounds))
    assert rollout.dropped == sum(map(len, scorer.rounds)) - 1


def test_a_batch_is_never_empty_even_if_every_group_agrees():
    scorer = Scorer(lambda i: [1.0] * G)
    rollout = collect(scorer, rollout__prompts_per_step=2, objective__max_refills=2)
    assert scorer.rounds == [[0, 1], [2, 3], [4, 5]]
    assert kept_groups(rollout) == [4, 5]
    assert (rollout.next_row, rollout.dropped) == (6, 4)


def test_scores_that_could_not_be_given_do_not_make_a_group_differ():
    groups = [[None, 1.0, 1.0, None], [None] * G, [None, 1.0, 0.0, None]]
    rollout = collect(
        Scorer(groups.__getitem__),
        rollout__prompts_per_step=3,
        objective__max_refills=0,
    )
    assert kept_groups(rollout) == [2]


def test_timings_add_up_over_the_rounds():
    rollout = collect(Scorer(split_if(2)), rollout__prompts_per_step=2)
    assert rollout.timing == Timing(2.0, 0.5, 20)


def test_requests_carry_the_data_position_and_the_settings_of_the_stage():
    seen = []

    def scorer(asked):
        seen.extend(asked)
        return Scorer(split_if(1))(asked)

    collect(scorer, next_row=5, loss=GRPO, rollout__temperature=0.7)
    for i, (request, prompt) in enumerate(seen, 5):
        assert (request.id, request.prompt) == (i, (1, i)) == (i, prompt.ids)
        assert (request.num_samples, request.max_new_tokens) == (G, 16)
        assert (request.temperature, request.stream) == (0.7, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_the_step_is_the_same_whatever_finishes_first(engine_seed, pool_seed):
    def value(completion):
        request, index = map(int, completion.split())
        return float(request % 3 == 0 and index == 1)

    def step(engine_seed, pool_seed):
        fakes = tiny.FakeEngine(engine_seed), tiny.FakePool(value, pool_seed)
        engine, pool, text, params = tiny.anything(*fakes, tiny.FakeText(), None)
        scorer = functools.partial(
            sample_and_score,
            engine,
            pool,
            text,
            params,
            version=0,
            check_stop=lambda: None,
        )
        rollout = collect(scorer, next_row=4, rollout__prompts_per_step=2)
        ids = [(s.sample.request, s.sample.index) for s in rollout.scored]
        values = [s.score.value for s in rollout.scored]
        return ids, values, rollout.next_row, rollout.refills, rollout.dropped

    want = step(0, 0)
    assert want[0] == [(r, i) for r in (6, 9) for i in range(G)]
    assert step(engine_seed, pool_seed) == want


def test_dynamic_sampling_judges_scores_before_the_overlong_penalty():
    agreeing = [
        tiny.scored(1.0, index=i, completion=[5] * tokens)
        for i, tokens in enumerate((4, 14, 15, 16))
    ]
    rollout = collect(
        lambda asked: (agreeing, Timing()),
        rollout__prompts_per_step=1,
        objective__max_refills=1,
    )
    # Asked twice, although the penalty would tell the samples apart.
    assert (rollout.refills, rollout.dropped) == (1, 1)


def test_a_first_step_without_any_reward_is_an_error_that_names_the_verdict():
    stage = tiny.rl_stage()
    with pytest.raises(ConfigError, match="None of the 4 samples") as error:
        rl.check_rewarded(tiny.groups([None, None], [None, None]), stage)
    assert "--config.rl.reward.functions=" in str(error.value)
    assert "--config.rl.data.answer_column=" in str(error.value)
    assert len(str(error.value).splitlines()) <= 3
    rl.check_rewarded(tiny.groups([None, 0.0], [None, None]), stage)


# What came of the prompts, for the curriculum.


def test_every_group_that_was_asked_has_an_outcome_also_those_left_out():
    groups = [[1.0, 0.0, 1.0, 0.0], [1.0] * G, [0.0] * G, [None, 1.0, None, 0.0]]
    rollout = collect(
        Scorer(groups.__getitem__),
        rollout__prompts_per_step=2,
        objective__max_refills=2,
    )
    assert kept_groups(rollout) == [0, 3] and rollout.dropped == 2
    found = {k: (x.judged, x.solved) for k, x in rl.outcomes(rollout.every).items()}
    assert found == {0: (4, 2), 1: (4, 4), 2: (4, 0), 3: (2, 1)}
