"""Distillation: a student learns from a teacher's probabilities.

form "soft"   packed conversations, of which the student learns at every token of the
              assistant's turns what the teacher would have said there: this file
the others    replies that the student draws itself: on_policy.py

What a step does depends on the weights, the seed and the position in the data alone, so
that a resumed run repeats it to the bit.
"""

import functools
import operator
import time
from collections.abc import Callable

import numpy as np

from rl_jax import config as configs
from rl_jax import placement
from rl_jax.data.packing import fill
from rl_jax.data.pipeline import Reader
from rl_jax.distill_learner import Soft, make_distiller
from rl_jax.faults import fault
from rl_jax.learner import to_device
from rl_jax.mesh import is_lead
from rl_jax.models.params import Params
from rl_jax.stages import (
    distill_eval,
    inputs,
    on_policy,
    reporting,
    run_state,
    teacher,
)
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import exam_prompts
from rl_jax.stages.scoring import make_engine, make_pool


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    found = teacher.find(context, stage)
    if is_lead():
        print(f"{stage.name}: the teacher is {found.name}", flush=True)
    if stage.distill.form == "soft":
        return _run_soft(context, stage, base, found)
    return on_policy.run(context, stage, base, found)


def soft_spec(context: Context, stage: configs.StageConfig) -> Soft:
    """The soft loss that a config asks for.

    Raises:
        ConfigError: if more tokens are to be kept than there are.
    """
    distill, rows = stage.distill, context.model.vocab_size
    if distill.top_k > rows:
        raise fault(
            f"config.{stage.prefix}distill.top_k is {distill.top_k}, more than the "
            f"{rows} of the vocabulary",
            (f"{stage.prefix}distill.top_k", 0),
        )
    return Soft(distill.temperature, distill.direction, distill.top_k, distill.rest)


def _run_soft(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    found: teacher.Teacher,
) -> Params:
    soft = soft_spec(context, stage)
    seed, text = context.run.seed, context.tokenizer
    talks = inputs.conversations(stage, text, seed)
    held_out = exam_prompts(context, stage)
    inputs.assert_held_out(held_out, [talk.row for talk in talks])
    pieces = inputs.stream(talks, seed).map(operator.attrgetter("piece"))

    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    distiller = make_distiller(context.model, found.model, tx, lr_schedule, soft=soft)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        Reader(pieces, session.position.get("next_row", 0)) as reader,
    ):
        state, position = session.state, session.position
        teacher_params = teacher.placed(stage, found.read())
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                # Engine and reward workers live only as long as this.
                engine = make_engine(stage, context.model, text, context.mesh, seed)
                with make_pool(stage) as pool:
                    metrics = distill_eval.measure(
                        *(context, stage, distiller, engine, pool),
                        *(state.params, teacher_params, held_out),
                    )
                del engine
                session.write(step, metrics)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            packed, taken = fill(
                reader.ahead(), stage.batch.rows_per_step, stage.batch.row_tokens
            )
            reader.take(taken)
            counted = int(packed.mask_BT.sum())
            # One weight for every token of the step: the mean over all of them.
            weight_N = np.full(1, 1.0 / max(counted, 1), np.float32)
            grads = distiller.zero_gradient(state.params)
            parts = []
            near: Params | None = placement.to_device(teacher_params)
            rows_a_pass = stage.batch.micro_rows
            for i in range(0, stage.batch.rows_per_step, rows_a_pass):
                batch = to_device(packed.rows(i, i + rows_a_pass), context.mesh)
                grads, metrics = distiller.soft_gradient(
                    state.params, grads, near, batch, weight_N, counted
                )
                parts.append(metrics)
            near = None  # of no use to the optimiser, nor to an evaluation's replies
            state, metrics = distiller.apply_gradient(state, grads)
            seen = int((packed.segment_BT > 0).sum())
            position = {
                "next_row": reader.position,
                "tokens": position.get("tokens", 0) + seen,
            }
            known = {
                "train/num_tokens": position["tokens"],
                "train/epoch": position["next_row"] / len(talks),
            }
            finish = functools.partial(
                *(reporting.finished_step, parts, metrics, known, _named),
                tokens=seen,
                began=began,
            )
            # Fetched only when the next step has been dispatched.
            session.write_later(step + 1, finish)
            session.save(step + 1, state, position)
        return state.params


def _named(merged: dict[str, float]) -> dict[str, float]:
    return {f"train/{name}": value for name, value in merged.items()}
