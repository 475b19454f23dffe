"""Accuracy on held-out prompts."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from rl_jax import config as configs
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.models.params import Params
from rl_jax.rewards.pool import RewardPool
from rl_jax.rewards.score import Verdict
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.sample import EVAL_STREAM, Request
from rl_jax.stages import inputs
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.scoring import (
    Scored,
    check_rows,
    make_engine,
    make_pool,
    sample_and_score,
)


def answers(
    engine: Engine,
    pool: RewardPool,
    text: Tokenizer,
    params: Params,
    prompts: Sequence[Prompt],
    *,
    num_samples: int,
    temperature: float,
    max_new_tokens: int,
    check_stop: Callable[[], None] = lambda: None,
) -> list[Scored]:
    """`num_samples` scored answers to each prompt, in order.

    The draws of a prompt are the same each time it is asked, so that two evaluations
    differ by their weights and not by chance.
    """
    asked = [
        (
            Request(i, p.ids, num_samples, max_new_tokens, temperature, EVAL_STREAM),
            p,
        )
        for i, p in enumerate(prompts)
    ]
    scored, _ = sample_and_score(
        engine, pool, text, params, asked, version=0, check_stop=check_stop
    )
    return scored


def is_correct(scored: Scored) -> bool:
    """True if the verdict of the main reward is "correct"."""
    return scored.score.verdict is Verdict.CORRECT


def evaluate(
    engine: Engine,
    pool: RewardPool,
    text: Tokenizer,
    params: Params,
    prompts: Sequence[Prompt],
    stage: configs.StageConfig,
    stop: StopFlag,
) -> dict[str, float]:
    """The `eval/` metrics of a stage; accuracy is the share of right answers."""
    return measured(engine, pool, text, params, prompts, stage, stop)[0]


def exam_prompts(context: Context, stage: configs.StageConfig) -> list[Prompt]:
    """The prompts that a stage is evaluated on, if any; refuses those of no use.

    At the start, and not at the first evaluation, which may be hours away.
    """
    if not (stage.eval.every and stage.data.eval):
        return []
    prompts = inputs.eval_prompts(stage, context.tokenizer)
    with make_pool(stage) as pool:
        check_rows(pool, stage, prompts)
    return prompts


def measured_once(
    context: Context,
    stage: configs.StageConfig,
    params: Params,
    prompts: Sequence[Prompt],
) -> tuple[dict[str, float], list[Scored]]:
    """As `measured`; engine and reward workers live only as long as this."""
    text = context.tokenizer
    engine = make_engine(stage, context.model, text, context.mesh, context.run.seed)
    with make_pool(stage) as pool:
        return measured(engine, pool, text, params, prompts, stage, context.stop)


def measured(
    engine: Engine,
    pool: RewardPool,
    text: Tokenizer,
    params: Params,
    prompts: Sequence[Prompt],
    stage: configs.StageConfig,
    stop: StopFlag,
) -> tuple[dict[str, float], list[Scored]]:
    """What `evaluate` gives, and answers to show: drawn ones, or else the likeliest."""
    shown: list[Scored] = []
    shared = {"max_new_tokens": stage.rollout.max_new_tokens, "check_stop": stop.check}
    began = time.monotonic()
    metrics: dict[str, float] = {"eval/num_prompts": len(prompts)}
    if stage.eval.num_samples:
        drawn = answers(
            engine,
            pool,
            text,
            params,
            prompts,
            num_samples=stage.eval.num_samples,
            temperature=stage.rollout.temperature,
            **shared,
        )
        shown = drawn
        lengths = [s.sample.policy_mask.sum() for s in drawn]
        metrics["eval/accuracy"] = float(np.mean([is_correct(s) for s in drawn]))
        metrics["eval/mean_length"] = float(np.mean(lengths))
    if stage.eval.greedy:
        best = answers(
            engine,
            pool,
            text,
            params,
            prompts,
            num_samples=1,
            temperature=0.0,
            **shared,
        )
        shown = shown or best
        metrics["eval/accuracy_greedy"] = float(np.mean([is_correct(s) for s in best]))
    metrics["time/eval"] = time.monotonic() - began
    return metrics, shown
