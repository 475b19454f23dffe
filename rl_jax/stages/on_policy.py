"""On-policy distillation: the student draws replies, the teacher scores their tokens.

A step draws `group_size` replies to each of `prompts_per_step` prompts, has the teacher
read them (one forward pass), packs them into rows and takes `updates_per_step`
optimiser steps on `objectives.distillation.on_policy_loss`. Rewards are only asked for
where the form adds their advantage (`distill.outcome`); a reply without one still
learns from the teacher.

Legend: N samples of a step, B rows of a micro-batch, T positions of a row.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rl_jax import config as configs
from rl_jax import placement
from rl_jax.data.packing import pack
from rl_jax.data.pipeline import Reader
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.distill_learner import Distiller, make_distiller
from rl_jax.learner import Batch, Outcome, State
from rl_jax.models.params import Params
from rl_jax.objectives import distillation, policy
from rl_jax.objectives.distillation import OnPolicy
from rl_jax.rewards.pool import RewardPool
from rl_jax.rewards.score import Score, Verdict
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.sample import Request, Sample
from rl_jax.stages import distill_eval, inputs, reporting, run_state, teacher
from rl_jax.stages.agreement import check_agreement
from rl_jax.stages.context import Context
from rl_jax.stages.distill_eval import draw
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.planning import Plan, Update, piece, weights
from rl_jax.stages.scoring import (
    check_rows,
    completion_text,
    make_engine,
    make_pool,
    sample_and_score,
)
from rl_jax.stages.teacher import Teacher
from rl_jax.stages.updating import micro_batches, take_steps


def run(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    found: Teacher,
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    spec = on_policy_spec(stage)
    seed, text = context.run.seed, context.tokenizer
    prompts = inputs.train_prompts(stage, text, seed)
    held_out = inputs.eval_prompts(stage, text) if stage.eval.every else []
    inputs.assert_held_out(held_out, [p.row for p in prompts])

    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    distiller = make_distiller(
        context.model,
        found.model,
        tx,
        lr_schedule,
        on_policy=spec,
        num_groups=stage.rollout.prompts_per_step,
        temperature=stage.rollout.temperature,
    )
    engine = make_engine(stage, context.model, text, context.mesh, seed)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        make_pool(stage) as pool,
        Reader(
            inputs.stream(prompts, seed), session.position.get("next_row", 0)
        ) as reader,
    ):
        check_rows(pool, stage, [*(prompts if spec.outcome else ()), *held_out])
        state, position = session.state, session.position
        teacher_params = teacher.placed(stage, found.read())
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                metrics = distill_eval.measure(
                    *(context, stage, distiller, engine, pool),
                    *(state.params, teacher_params, held_out),
                )
                session.write(step, metrics)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            received, secs = engine.handover_bytes, engine.handover_secs
            asked = requests(reader, stage)
            replies = draw_replies(
                *(engine, pool, state.params, asked, context),
                rewarded=bool(spec.outcome),
                version=int(state.step),
            )
            drawn = time.monotonic()
            plan = make_plan(replies, stage, spec)
            if step == session.start:
                check_agreement(context, stage, distiller.score, state.params, plan)
            state, metrics = update(
                distiller, state, teacher_params, plan, stage, context
            )
            updated = time.monotonic()
            tokens = sum(int(s.policy_mask.sum()) for s in replies.samples)
            position = {
                "next_row": reader.position,
                "tokens": position.get("tokens", 0) + tokens,
            }
            metrics |= reply_metrics(replies)
            metrics |= reporting.handover_metrics(
                engine.handover_bytes - received, engine.handover_secs - secs
            )
            metrics |= {
                "train/num_tokens": position["tokens"],
                "train/epoch": position["next_row"] / len(prompts),
                "time/rollout": drawn - began,
                "time/update": updated - drawn,
                "time/step": updated - began,
                "perf/tokens_per_sec_generate": tokens / (drawn - began),
                "perf/tokens_per_sec_train": plan.num_positions / (updated - drawn),
            }
            session.write(step + 1, metrics, records(replies, asked, text))
            session.save(step + 1, state, position)
        return state.params


def on_policy_spec(stage: configs.StageConfig) -> OnPolicy:
    """The named form with the config's own values put in.

    A form whose own loss takes nothing from a reward (opd) takes the group's mean where
    `distill.outcome` asks for rewards: an advantage, not the reward itself.

    Raises:
        ConfigError: if the result is no valid loss.
    """
    spec = distillation.PRESETS[stage.distill.form]
    given = {"outcome": stage.distill.outcome, "bound": stage.distill.bound}
    given = {name: value for name, value in given.items() if value is not None}
    spec = dataclasses.replace(spec, **given)
    if spec.outcome and spec.loss.centre == "none":
        loss = dataclasses.replace(spec.loss, centre="group_mean")
        spec = dataclasses.replace(spec, loss=loss)
    policy.validate(spec.loss)
    return spec


@dataclasses.dataclass(frozen=True)
class Replies:
    """The samples of a step in order of their requests; scores if there are any."""

    samples: list[Sample]
    scores: list[Score]


Asked = Sequence[tuple[Request, Prompt]]


def requests(reader: Reader, stage: configs.StageConfig) -> Asked:
    """The next prompts, each to be answered `group_size` times."""
    rollout = stage.rollout
    ask = functools.partial(
        Request,
        num_samples=rollout.group_size,
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
    )
    taken = reader.take(rollout.prompts_per_step)
    return [(ask(i, prompt.ids), prompt) for i, prompt in taken]


def draw_replies(
    engine: Engine,
    pool: RewardPool,
    params: Params,
    asked: Asked,
    context: Context,
    *,
    rewarded: bool,
    version: int,
) -> Replies:
    """Draws the replies of a step, and scores them if the loss wants rewards."""
    watched = {"version": version, "check_stop": context.stop.check}
    if not rewarded:
        only = [request for request, _ in asked]
        return Replies(draw(engine, params, only, **watched), [])
    text = context.tokenizer
    scored, _ = sample_and_score(engine, pool, text, params, asked, **watched)
    return Replies([s.sample for s in scored], [s.score for s in scored])


def make_plan(replies: Replies, stage: configs.StageConfig, spec: OnPolicy) -> Plan:
    """Replies to token weights and packed rows, whole groups in each update.

    Every reply is trained on. One without a reward has no advantage from rewards.
    """
    samples, G = replies.samples, stage.rollout.group_size
    N, num_groups = len(samples), stage.rollout.prompts_per_step
    values = [score.value for score in replies.scores] or [None] * N
    valid_N = np.array([value is not None for value in values])
    reward_N = np.array([value or 0.0 for value in values], np.float32)
    length_N = np.array([s.policy_mask.sum() for s in samples], np.int32)
    group_N = (np.arange(N) // G).astype(np.int32)
    updates = []
    for share in np.array_split(np.arange(num_groups), stage.batch.updates_per_step):
        inside_N = np.isin(group_N, share)
        weight_N = weights(
            length_N,
            group_N,
            inside_N,
            mode=spec.loss.aggregate,
            num_groups=num_groups,
            constant=float(stage.rollout.max_new_tokens),
        )
        chosen = np.flatnonzero(inside_N).tolist()
        pieces = [piece(samples[n], n, int(group_N[n])) for n in chosen]
        packed = pack(pieces, stage.batch.row_tokens, stage.batch.micro_rows)
        outcome = Outcome(reward_N, group_N, valid_N, weight_N)
        updates.append(Update(packed, outcome, int(packed.mask_BT.sum())))
    reward_N = np.where(valid_N, reward_N, np.nan)
    positions = sum(int((u.packed.segment_BT > 0).sum()) for u in updates)
    return Plan(updates, reward_N, valid_N, group_N, positions)


def update(
    distiller: Distiller,
    state: State,
    teacher_params: Params,
    plan: Plan,
    stage: configs.StageConfig,
    context: Context,
) -> tuple[State, dict[str, float]]:
    """Takes the optimiser steps of a plan; metrics are means over them."""
    rows = stage.batch.micro_rows
    # Only until the batches are scored: gradients then take its room.
    near: Params | None = placement.to_device(teacher_params)

    def scored(batch: Batch) -> Batch:
        teacher_logp_BT = distiller.teacher_score(near, batch)
        batch = dataclasses.replace(batch, ref_logp_BT=teacher_logp_BT)
        if len(plan.updates) > 1:
            old_logp_BT = distiller.score(state.params, batch)
            batch = dataclasses.replace(batch, old_logp_BT=old_logp_BT)
        return batch

    # All of a step's batches are scored by the weights it began with.
    prepared = [
        [scored(batch) for batch in micro_batches(one, rows, context.mesh)]
        for one in plan.updates
    ]
    near = None
    state, merged = take_steps(
        *(distiller, distiller.on_policy_gradient, state, plan.updates, prepared),
        context.stop.check,
    )
    below = float(np.mean([one.pop("reverse_kl") for one in merged]))
    return state, reporting.update_metrics(merged) | {"train/reverse_kl": below}


def reply_metrics(replies: Replies) -> dict[str, float]:
    """Lengths of the replies of a step; rewards and accuracy if there are scores."""
    metrics = reporting.length_metrics(replies.samples)
    if replies.scores:
        values = [s.value for s in replies.scores if s.value is not None]
        right = [s.verdict is Verdict.CORRECT for s in replies.scores]
        metrics["train/reward"] = float(np.mean(values)) if values else 0.0
        metrics["train/accuracy"] = float(np.mean(right))
        metrics["health/reward_none"] = len(right) - len(values)
    return metrics


def records(replies: Replies, asked: Asked, text: Tokenizer) -> Iterator[dict]:
    """Replies as rows for the samples file, made when they are taken."""
    prompts = {request.id: prompt for request, prompt in asked}
    scores = replies.scores or [None] * len(replies.samples)
    for sample, score in zip(replies.samples, scores, strict=True):
        yield {
            "request": sample.request,
            "index": sample.index,
            "prompt": prompts[sample.request].row.messages[-1]["content"],
            "completion": completion_text(sample, text),
            "answer": prompts[sample.request].row.answer,
            "score": score and score.value,
            "verdict": score and score.verdict.value,
            "num_tokens": int(sample.policy_mask.sum()),
            "stop_reason": sample.stop_reason,
        }
