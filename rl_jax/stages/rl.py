"""Reinforcement learning on verifiable rewards: sample, score, compare, update.

A step samples `prompts_per_step` groups of `group_size` answers, scores them, turns
each group's scores into advantages, packs the samples into rows and takes
`updates_per_step` optimiser steps. What a step does depends on the weights, the seed
and the position in the data alone, so that a resumed run repeats it to the bit.

Legend: N samples of a step, B rows of a micro-batch, T positions of a row.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax import config as configs
from rl_jax import credit
from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.data.pipeline import Reader
from rl_jax.errors import ConfigError
from rl_jax.learner import (
    Batch,
    Learner,
    Outcome,
    State,
    make_learner,
    merge_metrics,
    to_device,
    varies,
)
from rl_jax.models.params import Params
from rl_jax.objectives.aggregate import token_weights
from rl_jax.objectives.policy import PolicyLoss, needs_agreeing_groups
from rl_jax.objectives.shaping import group_length_reward, soft_overlong_penalty
from rl_jax.policy_config import policy_loss_spec
from rl_jax.rewards.score import Verdict
from rl_jax.rollout.sample import Request, Sample
from rl_jax.stages import inputs, reporting, run_state
from rl_jax.stages.agreement import check_agreement
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import evaluate
from rl_jax.stages.scoring import (
    Scored,
    Timing,
    check_rows,
    make_engine,
    make_pool,
    records,
    sample_and_score,
)


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    loss = policy_loss_spec(stage)
    seed, text = context.run.seed, context.tokenizer
    prompts = inputs.train_prompts(stage, text, seed)
    held_out = inputs.eval_prompts(stage, text) if stage.eval.every else []
    inputs.assert_held_out(held_out, [p.row for p in prompts])

    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    learner = make_learner(
        context.model,
        tx,
        lr_schedule,
        loss=loss,
        num_groups=stage.rollout.prompts_per_step,
        temperature=stage.rollout.temperature,
    )
    engine = make_engine(stage, context.model, text, context.mesh, seed)
    sample = functools.partial(sample_and_score, check_stop=context.stop.check)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        make_pool(stage) as pool,
        Reader(
            inputs.stream(prompts, seed), session.position.get("next_row", 0)
        ) as reader,
    ):
        check_rows(pool, stage, [*prompts, *held_out])
        reference = base() if loss.kl_coef else None
        state, position = session.state, session.position
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                metrics = evaluate(
                    engine, pool, text, state.params, held_out, stage, context.stop
                )
                session.write(step, metrics)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            rollout = collect(
                functools.partial(
                    sample, engine, pool, text, state.params, version=int(state.step)
                ),
                reader,
                stage,
                loss,
            )
            plan = make_plan(rollout.scored, stage, loss, seed=seed, step=step)
            if step == session.start:
                check_rewarded(rollout.scored, stage)
                check_agreement(context, stage, learner.score, state.params, plan)
            updating = time.monotonic()
            state, metrics = update(
                learner, state, reference, plan, stage, loss, context
            )
            updated = time.monotonic()
            position = {
                "next_row": rollout.next_row,
                "tokens": position.get("tokens", 0) + rollout.timing.tokens,
            }
            metrics |= reporting.rollout_metrics(rollout, plan, stage)
            metrics |= {
                "train/num_tokens": position["tokens"],
                "train/epoch": rollout.next_row / len(prompts),
                "time/update": updated - updating,
                "time/step": updated - began,
                "perf/tokens_per_sec_train": plan.num_positions / (updated - updating),
            }
            session.write(step + 1, metrics, records(rollout.scored))
            session.save(step + 1, state, position)
        return state.params


def check_rewarded(scored: Sequence[Scored], stage: configs.StageConfig) -> None:
    """Raises ConfigError if no sample has a reward, as then nothing can be learnt."""
    if any(s.score.value is not None for s in scored):
        return
    score = scored[0].score
    raise ConfigError(
        f"None of the {len(scored)} samples of the first step got a reward: verdict "
        f"{score.verdict.value!r}, {score.detail or 'no detail'}.\nLook at "
        f"--config.{stage.prefix}reward.functions={','.join(stage.reward.functions)} "
        f"and --config.{stage.prefix}data.answer_column="
        f"{stage.data.answer_column or 'NAME'}."
    )


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The scored samples of one step, whole groups in order of their requests.

    Attributes:
        next_row: the data position after it.
        refills: times that dynamic sampling asked for more prompts.
        dropped: groups it left out because their scores agreed.
    """

    scored: list[Scored]
    timing: Timing
    next_row: int
    refills: int
    dropped: int


def collect(
    scorer: Callable[..., tuple[list[Scored], Timing]],
    reader: Reader,
    stage: configs.StageConfig,
    loss: PolicyLoss,
) -> Rollout:
    """Samples and scores the groups of a step.

    With dynamic sampling a group whose scores agree teaches nothing: it is left out
    and as many new prompts are asked, in rounds, so that which prompts are asked
    depends on scores and never on which came first.

    Source: DAPO, arXiv:2503.14476, section 3.2.
    """
    G = stage.rollout.group_size
    wanted = stage.rollout.prompts_per_step
    kept: list[Scored] = []
    timing, refills, dropped = Timing(), 0, 0
    while True:
        missing = wanted - len(kept) // G
        asked = []
        for i, prompt in reader.take(missing):
            request = Request(
                i,
                prompt.ids,
                G,
                stage.rollout.max_new_tokens,
                stage.rollout.temperature,
            )
            asked.append((request, prompt))
        scored, spent = scorer(asked=asked)
        timing += spent
        groups = [scored[i : i + G] for i in range(0, len(scored), G)]
        if not loss.dynamic_sampling:
            kept = scored
            break
        telling = [group for group in groups if _scores_differ(group)]
        dropped += len(groups) - len(telling)
        kept.extend(s for group in telling for s in group)
        if len(kept) == wanted * G or refills == stage.objective.max_refills:
            if not kept:
                # Never an empty batch: the last round's groups then teach nothing.
                kept, dropped = scored, dropped - len(groups)
            break
        refills += 1
    return Rollout(kept, timing, reader.position, refills, dropped)


def _scores_differ(group: Sequence[Scored]) -> bool:
    values = {s.score.value for s in group if s.score.value is not None}
    return len(values) > 1


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
_weights = jax.jit(token_weights, static_argnames=("mode", "num_groups", "constant"))


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
        weight_N = _weights(
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
        pieces = [_piece(scored[n].sample, n, group_N[n]) for n in chosen.tolist()]
        packed = pack(pieces, stage.batch.row_tokens, stage.batch.micro_rows)
        outcome = Outcome(reward_N, group_N, valid_N, weight_N)
        updates.append(Update(packed, outcome, int(packed.mask_BT.sum())))
    reward_N = np.where(valid_N, reward_N, np.nan)
    positions = sum(int((u.packed.segment_BT > 0).sum()) for u in updates)
    return Plan(updates, reward_N, valid_N, group_N, positions)


def _piece(sample: Sample, n: int, group: int) -> Piece:
    return Piece(
        tokens=sample.tokens,
        mask=sample.policy_mask,
        sampler_logp=sample.sampler_logp,
        sample=n,
        group=group,
    )


def update(
    learner: Learner,
    state: State,
    reference: Params | None,
    plan: Plan,
    stage: configs.StageConfig,
    loss: PolicyLoss,
    context: Context,
) -> tuple[State, dict[str, float]]:
    """Takes the optimiser steps of a plan; metrics are means over them."""
    rows = stage.batch.micro_rows
    needs_old = len(plan.updates) > 1 or credit.is_by_token(loss)

    def micro_batches(one: Update) -> list[Batch]:
        starts = range(0, len(one.packed.token_BT), rows)
        return [to_device(one.packed.rows(i, i + rows), context.mesh) for i in starts]

    def scored(batch: Batch) -> Batch:
        if needs_old:
            old_logp_BT = learner.score(state.params, batch)
            batch = dataclasses.replace(batch, old_logp_BT=old_logp_BT)
        if reference is not None:
            ref_logp_BT = learner.score(reference, batch)
            batch = dataclasses.replace(batch, ref_logp_BT=ref_logp_BT)
        return batch

    # All of a step's batches are scored by the weights it began with.
    prepared = [[scored(b) for b in micro_batches(one)] for one in plan.updates]
    if credit.is_by_token(loss):
        every = credit.with_advantages(
            [batch for batches in prepared for batch in batches],
            plan.updates[0].outcome,
            loss=loss,
            num_groups=stage.rollout.prompts_per_step,
        )
        ends = np.cumsum([len(batches) for batches in prepared]).tolist()
        prepared = [every[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    merged: list[dict[str, float]] = []
    for one, batches in zip(plan.updates, prepared, strict=True):
        grads = learner.zero_gradient(state.params)
        parts = []
        for batch in batches:
            if one is plan.updates[0]:  # later the state of the step's start is gone
                context.stop.check()
            grads, metrics = learner.policy_gradient(
                state.params, grads, batch, one.outcome, one.num_tokens
            )
            parts.append(metrics)
        state, metrics = learner.apply_gradient(state, grads)
        merged.append(merge_metrics(parts) | jax.device_get(metrics))
    return state, reporting.update_metrics(merged)
