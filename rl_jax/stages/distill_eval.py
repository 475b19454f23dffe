"""What a distillation is measured by: accuracy, and how far the student still is.

Legend: B packed rows, T positions.
"""

import functools
import time
from collections.abc import Callable, Sequence

import jax

from rl_jax import config as configs
from rl_jax import placement
from rl_jax.data.packing import pack
from rl_jax.distill_learner import Distiller
from rl_jax.learner import to_device
from rl_jax.models.params import Params
from rl_jax.rewards.pool import RewardPool
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.sample import EVAL_STREAM, Request, Sample
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import evaluate
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.planning import piece


def draw(
    engine: Engine,
    params: Params,
    requests: Sequence[Request],
    *,
    version: int,
    check_stop: Callable[[], None],
) -> list[Sample]:
    """Answers every request, in the order of requests and sample indices.

    Nothing is scored: as far as the teacher goes no reward is needed.

    Args:
        version: of `params`, written beside each token.
        check_stop: called between dispatches; may raise to abandon everything.
    """
    order = {request.id: i for i, request in enumerate(requests)}
    assert len(order) == len(requests), "two requests with one id"
    for request in requests:
        engine.submit(request)
    drawn: list[Sample] = []
    while engine.busy:
        check_stop()
        drawn += engine.poll(params, version)
    return sorted(drawn, key=lambda sample: (order[sample.request], sample.index))


def measure(
    context: Context,
    stage: configs.StageConfig,
    distiller: Distiller,
    engine: Engine,
    pool: RewardPool,
    params: Params,
    teacher_params: Params,
    held_out: Sequence[Prompt],
) -> dict[str, float]:
    """The `eval/` metrics of a stage.

    "eval/kl" is the exact KL(student || teacher) of the next token, over the whole
    vocabulary and at temperature 1, in the mean over the tokens of one reply of the
    student to each prompt of `data.eval`, drawn at `rollout.temperature`: at what the
    student itself says, which is what on-policy forms bring down.
    """
    began = time.monotonic()
    metrics = evaluate(
        engine, pool, context.tokenizer, params, held_out, stage, context.stop
    )
    ask = functools.partial(
        Request,
        num_samples=1,
        max_new_tokens=stage.rollout.max_new_tokens,
        temperature=stage.rollout.temperature,
        stream=EVAL_STREAM,
    )
    requests = [ask(i, prompt.ids) for i, prompt in enumerate(held_out)]
    drawn = draw(engine, params, requests, version=0, check_stop=context.stop.check)
    metrics["eval/kl"] = mean_kl(
        context, stage, distiller, params, teacher_params, drawn
    )
    metrics["time/eval"] = time.monotonic() - began
    return metrics


def mean_kl(
    context: Context,
    stage: configs.StageConfig,
    distiller: Distiller,
    params: Params,
    teacher_params: Params,
    samples: Sequence[Sample],
) -> float:
    """Mean over the samples' own tokens of KL(student || teacher), nats."""
    rows, pieces = stage.batch.micro_rows, [piece(s, 0, 0) for s in samples]
    packed = pack(pieces, stage.batch.row_tokens, rows)
    near = placement.to_device(teacher_params)
    totals = [
        distiller.total_kl(
            params, near, to_device(packed.rows(i, i + rows), context.mesh)
        )
        for i in range(0, len(packed.token_BT), rows)
    ]
    return float(sum(jax.device_get(totals))) / max(int(packed.mask_BT.sum()), 1)
