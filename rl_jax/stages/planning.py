"""What the scores of a step ask of the learner: rewards, weights, packed rows.

Legend: N samples of a step, B rows of a micro-batch, T positions of a row.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax import config as configs
from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.learner import Outcome, varies
from rl_jax.objectives.aggregate import token_weights
from rl_jax.objectives.policy import PolicyLoss, needs_agreeing_groups
from rl_jax.objectives.shaping import group_length_reward, soft_overlong_penalty
from rl_jax.rewards.score import Verdict
from rl_jax.rollout.sample import Sample
from rl_jax.stages.scoring import Scored


@dataclasses.dataclass(frozen=True)
class Update:
    """One optimiser step: packed rows, and what became of all samples."""

    packed: Packed
    outcome: Outcome
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the scored samples of a step ask of the learner.

    Attributes:
        reward_N: float32 as trained on, penalties included; NaN where there is none.
        valid_N: bool, the sample has a reward.
        group_N: int32 group of each sample, from 0.
        num_positions: input tokens of all updates.
    """

    updates: list[Update]
    reward_N: np.ndarray
    valid_N: np.ndarray
    group_N: np.ndarray
    num_positions: int


_length_reward = jax.jit(group_length_reward, static_argnames="num_groups")
weights = jax.jit(token_weights, static_argnames=("mode", "num_groups", "constant"))


def make_plan(
    scored: Sequence[Scored],
    stage: configs.StageConfig,
    loss: PolicyLoss,
    *,
    seed: int,
    step: int,
) -> Plan:
    """Scores to rewards, token weights and packed rows.

    A sample without a reward is left out everywhere. Groups whose rewards agree have
    advantage 0: unless a KL or entropy term wants them they are counted in the
    weights but not computed on.
    """
    N = stage.rollout.prompts_per_step * stage.rollout.group_size
    G, num_groups = stage.rollout.group_size, stage.rollout.prompts_per_step
    scores = [s.score for s in scored]
    if stage.reward.shuffle:
        order = np.random.default_rng((seed, step)).permutation(len(scores))
        scores = [scores[i] for i in order]
    values = [score.value for score in scores]
    correct = [score.verdict is Verdict.CORRECT for score in scores]

    def padded(x, fill, dtype):
        return np.array([*x, *[fill] * (N - len(scored))], dtype)

    valid_N = padded([v is not None for v in values], False, bool)
    reward_N = padded([0.0 if v is None else v for v in values], 0.0, np.float32)
    length_N = padded([s.sample.policy_mask.sum() for s in scored], 0, np.int32)
    group_N = (np.arange(N) // G).astype(np.int32)
    if loss.overlong_buffer:
        penalty_N = soft_overlong_penalty(
            jnp.asarray(length_N),
            max_tokens=stage.rollout.max_new_tokens,
            buffer=loss.overlong_buffer * stage.rollout.max_new_tokens,
            factor=stage.objective.overlong_factor,
            definition=stage.objective.overlong,
        )
        reward_N += np.asarray(penalty_N)
    if stage.objective.length_coef and step >= stage.objective.length_from:
        reward_N += stage.objective.length_coef * np.asarray(
            _length_reward(
                length_N,
                padded(correct, False, bool),
                group_N,
                valid_N,
                num_groups=num_groups,
            )
        )

    live_N = valid_N.copy()
    if not needs_agreeing_groups(loss):
        live_N &= np.asarray(varies(reward_N, group_N, valid_N, num_groups=num_groups))
    updates = []
    groups = np.arange(len(scored) // G)
    # Dynamic sampling may have found fewer groups than there should be updates.
    num_updates = min(stage.batch.updates_per_step, len(groups))
    for share in np.array_split(groups, num_updates):
        inside_N = valid_N & np.isin(group_N, share)
        weight_N = weights(
            length_N,
            group_N,
            inside_N,
            mode=loss.aggregate,
            num_groups=num_groups,
            constant=float(stage.rollout.max_new_tokens),
        )
        chosen = np.flatnonzero(inside_N & live_N)
        if not len(chosen):
            # Metrics still want a sample; its advantage of 0 gives no gradient.
            chosen = np.array([share[0] * G])
        pieces = [piece(scored[n].sample, n, group_N[n]) for n in chosen.tolist()]
        packed = pack(pieces, stage.batch.row_tokens, stage.batch.micro_rows)
        outcome = Outcome(reward_N, group_N, valid_N, weight_N)
        updates.append(Update(packed, outcome, int(packed.mask_BT.sum())))
    reward_N = np.where(valid_N, reward_N, np.nan)
    positions = sum(int((u.packed.segment_BT > 0).sum()) for u in updates)
    return Plan(updates, reward_N, valid_N, group_N, positions)


def piece(sample: Sample, n: int, group: int) -> Piece:
    """A sample to be packed, number `n` of its batch."""
    return Piece(
        tokens=sample.tokens,
        mask=sample.policy_mask,
        sampler_logp=sample.sampler_logp,
        sample=n,
        group=group,
    )
