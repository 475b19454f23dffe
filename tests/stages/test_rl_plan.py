"""What the scores of a step ask of the learner: advantages, weights, rows."""

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import learner as learners
from rl_jax.objectives.policy import PRESETS
from rl_jax.policy_config import policy_loss_spec
from rl_jax.stages import rl

GRPO, DAPO = PRESETS["grpo"], PRESETS["dapo"]
G = 4
ATOL = 1e-6  # float32, numbers of order one


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(tiny.one_device()) as found:
        yield found


def make_plan(scored, loss=GRPO, *, seed=0, step=0, **changes):
    changes = {
        "rollout__group_size": G,
        "rollout__prompts_per_step": max(1, len(scored) // G),
        **changes,
    }
    stage = tiny.rl_stage(**changes)
    return rl.make_plan(scored, stage, loss, seed=seed, step=step)


def advantages(plan, loss):
    """As the learner has them."""
    outcome = plan.updates[0].outcome
    num_groups = int(outcome.group_N.max()) + 1
    return learners.advantages(outcome, loss=loss, num_groups=num_groups)


def packed_samples(update):
    """Ids of the samples in an update's rows."""
    packed = update.packed
    return set(packed.sample_BT[packed.segment_BT > 0].tolist())


# Worked by hand: centred on the mean, over the population's deviation plus 1e-6. The
# spread of a whole batch is that of its groups that differ.
WORKED = {
    "group_std": [
        [0.999998, -0.999998, -0.999998, 0.999998],
        [0.577349, 0.577349, 0.577349, -1.732047],
        [0.0] * 4,
    ],
    "none": [[0.5, -0.5, -0.5, 0.5], [0.25, 0.25, 0.25, -0.75], [0.0] * 4],
    "varying_std": [
        [1.069043, -1.069043, -1.069043, 1.069043],
        [0.534521, 0.534521, 0.534521, -1.603564],
        [0.0] * 4,
    ],
}


@pytest.mark.parametrize("scale", WORKED)
def test_advantages_equal_the_worked_numbers(scale):
    scored = tiny.groups([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0] * 4)
    loss = policy_loss_spec(tiny.rl_stage(objective__scale=scale))
    plan = make_plan(scored, loss)
    np.testing.assert_allclose(
        advantages(plan, loss), np.ravel(WORKED[scale]), rtol=0, atol=2e-6
    )
    np.testing.assert_array_equal(plan.reward_N, [s.score.value for s in scored])


def test_the_only_right_sample_of_a_group_keeps_its_advantage():
    plan = make_plan(tiny.groups([1.0, 0.0, 0.0, 0.0]))
    want = [1.732047, -0.577349, -0.577349, -0.577349]
    np.testing.assert_allclose(advantages(plan, GRPO), want, rtol=0, atol=2e-6)
    assert packed_samples(plan.updates[0]) == {0, 1, 2, 3}


def test_samples_without_a_reward_count_nowhere():
    # The mean is that of 1, 0 and 0, as if the fourth sample had not been drawn.
    plan = make_plan(tiny.groups([1.0, None, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]))
    third = np.sqrt(2 / 9) + 1e-6
    want = [2 / 3 / third, 0, -1 / 3 / third, -1 / 3 / third]
    np.testing.assert_allclose(advantages(plan, GRPO)[:4], want, rtol=0, atol=ATOL)
    assert np.isnan(plan.reward_N[1]) and np.isnan(plan.reward_N).sum() == 1
    assert plan.valid_N.tolist() == [True, False] + [True] * 6
    (update,) = plan.updates
    assert packed_samples(update) == {0, 2, 3, 4, 5, 6, 7}
    # GRPO: each of the 7 samples that count has 1/7, over its 2 tokens.
    want = np.full(8, 1 / 14)
    want[1] = 0.0
    np.testing.assert_allclose(update.outcome.weight_N, want, rtol=0, atol=ATOL)
    assert update.num_tokens == 14


def test_a_batch_without_any_reward_changes_nothing_and_is_finite():
    plan = make_plan(tiny.groups([None] * 4, [None] * 4))
    assert not np.any(advantages(plan, GRPO)) and np.isnan(plan.reward_N).all()
    (update,) = plan.updates
    assert not np.any(update.outcome.weight_N)
    assert update.packed.mask_BT.any()  # there is something to measure


AGREEING = ([1.0] * 4, [1.0, 0.0, 0.0, 1.0], [0.0] * 4)


def test_groups_that_agree_are_counted_but_not_computed_on():
    plan = make_plan(tiny.groups(*AGREEING), DAPO, objective__name="dapo")
    (update,) = plan.updates
    assert packed_samples(update) == {4, 5, 6, 7}
    # A mean over the tokens of all twelve samples, not of the four.
    np.testing.assert_allclose(update.outcome.weight_N, np.full(12, 1 / 24), atol=ATOL)
    found_N = advantages(plan, DAPO)
    assert not np.any(found_N[:4]) and not np.any(found_N[8:])
    assert update.num_tokens == 8


@pytest.mark.parametrize("coef", ["kl_coef", "entropy_coef"])
def test_groups_that_agree_are_computed_on_for_a_kl_or_entropy_term(coef):
    stage = tiny.rl_stage(**{f"objective__{coef}": 0.1})
    plan = make_plan(tiny.groups(*AGREEING), policy_loss_spec(stage))
    assert packed_samples(plan.updates[0]) == set(range(12))


def test_a_batch_of_groups_that_agree_still_has_something_to_measure():
    plan = make_plan(tiny.groups([1.0] * 4, [0.0] * 4))
    (update,) = plan.updates
    assert not np.any(advantages(plan, GRPO))
    assert len(packed_samples(update)) == 1 and update.num_tokens == 2


def test_rows_hold_each_sample_as_it_was_drawn():
    completion, logp = (5, 6, 7, tiny.STOP), (-0.5, -1.5, -2.5, -0.25)
    scored = tiny.groups([1.0, 0.0, 0.0, 0.0], completion=completion, logp=logp)
    packed = make_plan(scored).updates[0].packed
    for n in range(4):
        at = (packed.sample_BT == n) & (packed.segment_BT > 0)
        # Prompt (1, 2): position 0 predicts the prompt's second token.
        assert packed.token_BT[at].tolist() == [1, 2, 5, 6, 7]
        assert packed.target_BT[at].tolist() == [2, *completion]
        assert packed.mask_BT[at].tolist() == [False] + [True] * 4
        assert packed.sampler_logp_BT[at].tolist() == [0.0, *logp]


# Controls and penalties.


def distinct():
    return tiny.groups([0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0])


def shuffled(seed, step):
    plan = make_plan(distinct(), seed=seed, step=step, reward__shuffle=True)
    return plan.reward_N.tolist()


def test_shuffled_rewards_are_those_of_the_batch_in_another_order():
    plain = make_plan(distinct()).reward_N.tolist()
    assert plain == list(range(8))
    assert shuffled(0, 0) != plain and sorted(shuffled(0, 0)) == plain
    # Across groups: within one, the mean would still say how hard the prompt is.
    assert {value // 4 for value in shuffled(0, 0)[:4]} == {0, 1}


def test_the_shuffle_is_a_function_of_seed_and_step():
    assert shuffled(0, 0) == shuffled(0, 0)
    orders = [shuffled(seed, step) for seed in range(3) for step in range(3)]
    assert len({tuple(order) for order in orders}) == 9


def lengths(*tokens, values=(1.0, 1.0, 1.0, 0.0)):
    """A group of samples of so many tokens."""
    return [
        tiny.scored(v, index=i, completion=[5] * (n - 1) + [tiny.STOP if n < 16 else 5])
        for i, (v, n) in enumerate(zip(values, tokens, strict=True))
    ]


def test_the_overlong_penalty_is_added_once():
    # Buffer 0.2 x 16 = 3.2 tokens: nothing up to 12.8, then down to -1 at 16.
    plan = make_plan(lengths(12, 14, 16, 2), DAPO)
    want = [1.0, 1.0 - 1.2 / 3.2, 0.0, 0.0]
    np.testing.assert_allclose(plan.reward_N, want, rtol=0, atol=ATOL)
    centred = np.array(want) - np.mean(want)
    want = centred / (np.std(want) + 1e-6)
    np.testing.assert_allclose(advantages(plan, GRPO), want, rtol=0, atol=3e-6)


def test_the_overlong_penalty_may_have_a_factor():
    plan = make_plan(
        lengths(12, 14, 16, 2),
        DAPO,
        objective__overlong="openrlhf",
        objective__overlong_factor=0.5,
    )
    want = [1.0, 1.0 - 0.5 * 1.2 / 3.2, 0.5, 0.0]
    np.testing.assert_allclose(plan.reward_N, want, rtol=0, atol=ATOL)


def test_short_answers_are_paid_from_a_step_on_and_wrong_ones_never():
    # Kimi k1.5: 1/2 - (length - 2) / 14; of the wrong one, 1/2, nothing is left.
    changes = {"objective__length_coef": 0.1, "objective__length_from": 5}
    before, after = (
        make_plan(lengths(12, 14, 16, 2), step=step, **changes).reward_N
        for step in (4, 5)
    )
    np.testing.assert_array_equal(before, [1.0, 1.0, 1.0, 0.0])
    want = before + 0.1 * np.array([0.5 - 10 / 14, 0.5 - 12 / 14, -0.5, 0.0])
    np.testing.assert_allclose(after, want, rtol=0, atol=ATOL)


# Several updates a step.


@pytest.mark.parametrize("aggregate", ["token_mean", "seq_mean_token_mean"])
def test_updates_take_the_groups_in_order_with_denominators_of_their_own(aggregate):
    counts = [2, 3, 4, 5]
    scored = [
        tiny.scored(float(i == 0), request=g, index=i, completion=[5] * n)
        for g, n in enumerate(counts)
        for i in range(G)
    ]
    stage = tiny.rl_stage(objective__aggregate=aggregate)
    loss = policy_loss_spec(stage)
    plan = make_plan(scored, loss, batch__updates_per_step=2)
    assert [packed_samples(u) for u in plan.updates] == [set(range(8)), {*range(8, 16)}]
    tokens_N = np.repeat(counts, G)
    for update, inside in zip(plan.updates, (slice(0, 8), slice(8, 16)), strict=True):
        want = np.zeros(16)
        if aggregate == "token_mean":
            want[inside] = 1 / tokens_N[inside].sum()
        else:
            want[inside] = 1 / (8 * tokens_N[inside])
        np.testing.assert_allclose(update.outcome.weight_N, want, rtol=0, atol=ATOL)
        assert update.num_tokens == tokens_N[inside].sum()
    positions = sum(len(s.sample.tokens) - 1 for s in scored)
    assert plan.num_positions == positions


def test_fewer_groups_than_updates_make_fewer_updates():
    # What dynamic sampling leaves when it gives up.
    plan = make_plan(
        tiny.groups([1.0, 0.0, 0.0, 1.0]),
        DAPO,
        rollout__prompts_per_step=4,
        batch__updates_per_step=4,
    )
    assert [packed_samples(u) for u in plan.updates] == [{0, 1, 2, 3}]
    weight_N = plan.updates[0].outcome.weight_N
    np.testing.assert_allclose(weight_N[:4], 1 / 8, atol=ATOL)


def test_missing_groups_are_padding_that_counts_nowhere():
    plan = make_plan(
        tiny.groups([1.0, 0.0, 0.0, 1.0]), DAPO, rollout__prompts_per_step=3
    )
    found_N = advantages(plan, DAPO)
    assert found_N.shape == (12,) and not np.any(found_N[4:])
    weight_N = plan.updates[0].outcome.weight_N
    assert not plan.valid_N[4:].any() and not np.any(weight_N[4:])
    np.testing.assert_allclose(weight_N[:4], 1 / 8, atol=ATOL)
