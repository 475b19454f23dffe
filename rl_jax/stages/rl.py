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
from typing import Any

import numpy as np

from rl_jax import config as configs
from rl_jax import credit, placement
from rl_jax import learner as learners
from rl_jax.errors import ConfigError
from rl_jax.learner import (
    Batch,
    Learner,
    State,
    make_learner,
)
from rl_jax.models.params import Params
from rl_jax.objectives.policy import PolicyLoss
from rl_jax.policy_config import policy_loss_spec
from rl_jax.rewards import schedule
from rl_jax.rewards.pool import RewardPool
from rl_jax.rollout.sample import Request
from rl_jax.stage_checks.rl import rewards_by_step
from rl_jax.stages import hacking, inputs, reporting, run_state
from rl_jax.stages.agreement import check_agreement
from rl_jax.stages.asking import Asker, asking
from rl_jax.stages.context import Context
from rl_jax.stages.curriculum import Outcome
from rl_jax.stages.evaluation import evaluate, is_correct
from rl_jax.stages.judge import open_judge
from rl_jax.stages.planning import Plan, make_plan
from rl_jax.stages.scoring import (
    Judge,
    Scored,
    Timing,
    check_rows,
    make_engine,
    make_pool,
    records,
    sample_and_score,
)
from rl_jax.stages.updating import micro_batches, take_steps


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
    judge, reward_steps = _judge(context, stage), rewards_by_step(stage)
    renew_every = stage.objective.reference_every
    with (
        run_state.open_stage(
            context, stage, base, tx, reference=bool(renew_every)
        ) as session,
        make_pool(stage) as pool,
        asking(stage, prompts, seed, session.position) as asker,
    ):
        check_rows(pool, stage, [*prompts, *held_out])
        sample = functools.partial(
            sample_and_score,
            engine,
            pool,
            text,
            check_stop=context.stop.check,
            judge=judge,
        )
        total_weight = functools.partial(_total_weight, stage, pool)
        state, position, reference = session.state, session.position, None
        if renew_every:
            state, reference = learners.without_reference(state)
        elif loss.kl_coef:
            reference = run_state.placed_reference(stage, base())
        for step in range(session.start, stage.steps + 1):
            session.begin(step, _to_save(state, reference, stage), position)
            if session.evaluation_due(step):
                metrics = evaluate(
                    engine, pool, text, state.params, held_out, stage, context.stop
                )
                session.write(step, metrics)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, _to_save(state, reference, stage), position)
                break
            began = time.monotonic()
            pool.idle = schedule.idle(reward_steps, step + 1)
            if line := asker.begin(step + 1, stage.rollout.prompts_per_step):
                session.log(f"{stage.name}: {line}")
            scorer = functools.partial(
                sample,
                state.params,
                version=int(state.step),
                judge_weight=_judge_weight(stage, pool),
            )
            rollout = collect(scorer, asker, stage, loss)
            plan = make_plan(rollout.scored, stage, loss, seed=seed, step=step)
            if step == session.start:
                if any(total_weight(s.prompt.row.data_source) for s in rollout.scored):
                    check_rewarded(rollout.scored, stage)
                check_agreement(context, stage, learner.score, state.params, plan)
            updating = time.monotonic()
            state, metrics = update(
                learner, state, reference, plan, stage, loss, context
            )
            updated = time.monotonic()
            if reference is not None and renew_every and not (step + 1) % renew_every:
                reference = learners.replaced(reference, state.params)
                session.log(f"{stage.name}: step {step + 1} gives the new reference")
            asker.record(outcomes(rollout.every), step + 1)
            followed = _follow(position, rollout, stage, total_weight)
            if followed.line:
                session.log(f"{stage.name}: step {step + 1}: {followed.line}")
            position = {
                "next_row": rollout.next_row,
                "tokens": position.get("tokens", 0) + rollout.timing.tokens,
                **asker.remembered(),
                **followed.remembered,
            }
            metrics |= reporting.rollout_metrics(rollout, plan, stage)
            metrics |= (
                asker.metrics()
                | followed.metrics
                | {
                    "train/num_tokens": position["tokens"],
                    "train/epoch": rollout.next_row / len(prompts),
                    "time/update": updated - updating,
                    "time/step": updated - began,
                    "perf/tokens_per_sec_train": plan.num_positions
                    / (updated - updating),
                }
            )
            session.write(step + 1, metrics, records(rollout.scored))
            session.save(step + 1, _to_save(state, reference, stage), position)
        return state.params


def _to_save(state: State, reference: Params | None, stage: configs.StageConfig) -> Any:
    """What a checkpoint holds: a reference too, if it is another than at the start."""
    if reference is None or not stage.objective.reference_every:
        return state
    return learners.with_reference(state, reference)


def _follow(
    position: dict[str, Any],
    rollout: "Rollout",
    stage: configs.StageConfig,
    total_weight: Callable[[str], float],
) -> hacking.Followed:
    """What hidden functions, if there are some, say of the step."""
    if not stage.reward.hidden:
        return hacking.Followed()
    kept = position.get(hacking.GAP, [])
    return hacking.follow(kept, rollout.scored, total_weight, stage.reward.hidden_gap)


def _judge(context: Context, stage: configs.StageConfig) -> Judge | None:
    """The reward model of a stage that has one."""
    if not stage.reward.model:
        return None
    key = f"{stage.prefix}reward.model"
    longest = stage.rollout.max_prompt_tokens + stage.rollout.max_new_tokens
    return open_judge(context, stage.reward.model, key, row_tokens=longest)


def _judge_weight(stage: configs.StageConfig, pool: RewardPool) -> float:
    """What the reward model's score is multiplied by in this step."""
    counts = stage.reward.model and schedule.MODEL not in pool.idle
    return stage.reward.model_weight if counts else 0.0


def _total_weight(stage: configs.StageConfig, pool: RewardPool, source: str) -> float:
    """The sum of all weights, unsigned, that count in this step for a data source."""
    return pool.weight(source) + abs(_judge_weight(stage, pool))


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
        every: all that was scored, in groups in the order asked, those among them.
    """

    scored: list[Scored]
    timing: Timing
    next_row: int
    refills: int
    dropped: int
    every: Sequence[Scored] = ()


def collect(
    scorer: Callable[..., tuple[list[Scored], Timing]],
    asker: Asker,
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
    every: list[Scored] = []
    timing, refills, dropped = Timing(), 0, 0
    while True:
        missing = wanted - len(kept) // G
        asked = []
        for i, prompt in asker.take(missing):
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
        every += scored
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
    return Rollout(kept, timing, asker.position, refills, dropped, every)


def outcomes(scored: Sequence[Scored]) -> dict[int, Outcome]:
    """By request: how many replies have a score, and how many the verdict correct."""
    found: dict[int, Outcome] = {}
    for one in scored:
        known = one.score.value is not None
        before = found.get(one.sample.request, Outcome(0, 0))
        found[one.sample.request] = Outcome(
            before.judged + known, before.solved + (known and is_correct(one))
        )
    return found


def _scores_differ(group: Sequence[Scored]) -> bool:
    values = {s.score.value for s in group if s.score.value is not None}
    return len(values) > 1


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
    # Only until the batches are scored: gradients then take its room.
    near = placement.to_device(reference)

    def scored(batch: Batch) -> Batch:
        if needs_old:
            old_logp_BT = learner.score(state.params, batch)
            batch = dataclasses.replace(batch, old_logp_BT=old_logp_BT)
        if near is not None:
            ref_logp_BT = learner.score(near, batch)
            batch = dataclasses.replace(batch, ref_logp_BT=ref_logp_BT)
        return batch

    # All of a step's batches are scored by the weights it began with.
    prepared = [
        [scored(batch) for batch in micro_batches(one, rows, context.mesh)]
        for one in plan.updates
    ]
    near = None
    if credit.is_by_token(loss):
        every = credit.with_advantages(
            [batch for batches in prepared for batch in batches],
            plan.updates[0].outcome,
            loss=loss,
            num_groups=stage.rollout.prompts_per_step,
        )
        ends = np.cumsum([len(batches) for batches in prepared]).tolist()
        prepared = [every[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    state, merged = take_steps(
        *(learner, learner.policy_gradient, state, plan.updates, prepared),
        context.stop.check,
    )
    return state, reporting.update_metrics(merged)
