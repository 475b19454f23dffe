"""Prompts to scored samples: the engine samples while the reward workers score."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from jax.sharding import Mesh

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data.rows import Row
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.rewards import registry, routing
from rl_jax.rewards.pool import RewardPool
from rl_jax.rewards.schedule import MODEL
from rl_jax.rewards.score import Score, from_json
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.rollout.sample import Request, Sample
from rl_jax.stages.context import sampler_mesh
from rl_jax.stages.inputs import Prompt


@dataclasses.dataclass(frozen=True)
class Scored:
    """A sample with its score, and with its text for who asks for it."""

    prompt: Prompt
    sample: Sample
    score: Score
    tokenizer: Tokenizer

    @property
    def completion(self) -> str:
        """What the policy wrote. Of several processes few decode all samples."""
        return completion_text(self.sample, self.tokenizer)


class Judge(Protocol):
    """A trained reward model on the device."""

    def score(self, pieces: Sequence[np.ndarray]) -> list[float]:
        """One number for each piece: int32 ids, prompt and reply in one."""
        ...


@dataclasses.dataclass(frozen=True)
class Timing:
    """What sampling and scoring took.

    Attributes:
        sample_secs: of sampling, with the hand-over.
        wait_secs: of waiting for scores after it.
        tokens: drawn.
        handover_secs, handover_bytes: of weights that came from another mesh, and what
            all devices received.
    """

    sample_secs: float = 0.0
    wait_secs: float = 0.0
    tokens: int = 0
    handover_secs: float = 0.0
    handover_bytes: int = 0

    def __add__(self, other: "Timing") -> "Timing":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Timing(*(a + b for a, b in pairs))


def make_engine(
    stage: configs.StageConfig, model: ModelSpec, text: Tokenizer, mesh: Mesh, seed: int
) -> Engine:
    """The engine that a stage trains and evaluates with."""
    rollout = stage.rollout
    spec = EngineSpec(
        num_slots=rollout.slots,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_new_tokens=rollout.max_new_tokens,
        prefill_rows=rollout.prefill_rows,
        decode_steps=rollout.decode_steps,
        stop_ids=text.stop_ids,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
    )
    return Engine(model, spec, sampler_mesh(stage, mesh), seed=seed)


def make_pool(stage: configs.StageConfig) -> RewardPool:
    """The reward workers of a stage."""
    reward, key = stage.reward, f"{stage.prefix}reward"
    options = {
        "answer_format": reward.answer_format,
        "format_pattern": reward.format_pattern,
        "max_new_tokens": stage.rollout.max_new_tokens,
    }
    return RewardPool(
        reward.functions,
        reward.weights,
        routes=routing.parse(reward.routes, f"{key}.routes"),
        hidden=reward.hidden,
        num_workers=reward.workers,
        timeout_secs=reward.timeout_secs,
        options=options | registry.parse_options(reward.options, key),
        max_infrastructure_share=reward.max_infrastructure_share,
    )


def check_rows(
    pool: RewardPool, stage: configs.StageConfig, prompts: Iterable[Prompt]
) -> None:
    """Refuses rows that could not be judged, before anything is sampled for them.

    Raises:
        ConfigError: naming the row: no route for its data source, or a reference that
            its reward functions cannot use.
    """
    reward, key = stage.reward, f"config.{stage.prefix}reward"
    routes, rows = routing.parse(reward.routes), [p.row for p in prompts]
    if routes:
        for row in rows:
            routing.check_source(
                routes, row.data_source, where=_where(row), key=f"{key}.routes"
            )
    if not reward.check_golds:
        return
    own = [i for i in range(len(rows)) if processes.is_own(i)]
    found = pool.check_golds(
        [
            {
                "answer": rows[i].answer,
                "answers": list(rows[i].answers),
                "row": rows[i].extra,
                "data_source": rows[i].data_source,
            }
            for i in own
        ]
    )
    shares = processes.gather(
        "reference answers", [(own[i], text) for i, text in found], processes.END_SECS
    )
    if faults := sorted(fault for share in shares for fault in share):
        first, reason = faults[0]
        raise ConfigError(
            f"{_where(rows[first])}: its reference answer is of no use: {reason}.\n"
            f"{len(faults)} of {len(rows)} rows are like that. Take them out of the "
            f"data, or write --{key}.check_golds=false to leave their samples without "
            "a score."
        )


def _where(row: Row) -> str:
    return f"Row {row.index + 1} of {row.data_source}"


def sample_and_score(
    engine: Engine,
    pool: RewardPool,
    text: Tokenizer,
    params: Params,
    asked: Sequence[tuple[Request, Prompt]],
    *,
    version: int,
    check_stop: Callable[[], None],
    judge: Judge | None = None,
    judge_weight: float = 1.0,
) -> tuple[list[Scored], Timing]:
    """Answers every request and scores every answer.

    A sample is scored as soon as it ends, while others are still being drawn. The
    result is in the order of requests and sample indices, whatever finished first.

    Of several processes, which make the same calls and draw the same samples, each
    scores its share of them; all then know all scores.

    Args:
        version: of `params`, written beside each token.
        check_stop: called between dispatches; may raise to abandon everything.
        judge: whose score, times `judge_weight`, is added to that of the functions,
            and is the part "model". It judges while the last functions do.
    """
    prompts = {request.id: prompt for request, prompt in asked}
    assert len(prompts) == len(asked), "two requests with one id"
    first, count = {}, 0  # of each request: the number of its first sample
    for request, _ in asked:
        engine.submit(request)
        first[request.id] = count
        count += request.num_samples
    samples: dict[int, Sample] = {}
    scores: dict[int, Score] = {}
    own = [n for n in range(count) if processes.is_own(n)]
    drawn_before, started = engine.tokens_drawn, time.monotonic()
    received, secs = engine.handover_bytes, engine.handover_secs
    while engine.busy:
        check_stop()
        for sample in engine.poll(params, version):
            n = first[sample.request] + sample.index
            samples[n] = sample
            if processes.is_own(n):
                pool.submit(n, _job(prompts[sample.request], sample, text))
        scores.update(pool.poll())
    sampled = time.monotonic()
    # The same batches for the judge, whatever finished first.
    pieces = [samples[n].tokens for n in range(count)]
    judged = judge.score(pieces) if judge else None
    while len(scores) < len(own):
        check_stop()
        scores.update(pool.wait(0.2, at_least=pool.pending))
    scores = _of_all(scores)
    timing = Timing(
        sampled - started,
        time.monotonic() - sampled,
        engine.tokens_drawn - drawn_before,
        engine.handover_secs - secs,
        engine.handover_bytes - received,
    )
    scored = []
    for n in range(count):
        score, prompt = scores[n], prompts[samples[n].request]
        if judged is not None:
            alone = not pool.weight(prompt.row.data_source)
            score = with_model(score, judged[n], judge_weight, alone=alone)
        scored.append(Scored(prompt, samples[n], score, text))
    return scored, timing


def _of_all(scores: dict[int, Score]) -> dict[int, Score]:
    """The scores that this process gave, and those of the others."""
    if processes.is_alone():
        return scores
    told = [(n, score.to_json()) for n, score in scores.items()]
    shares = processes.gather("scores", told, processes.patience())
    return {n: from_json(fields) for share in shares for n, fields in share}


def with_model(score: Score, value: float, weight: float, *, alone: bool) -> Score:
    """The score with that of a reward model added; the verdict stays.

    What the functions could not judge remains without a value.

    Args:
        weight: 0: it is only measured.
        alone: no function counts for this sample, so that theirs is no value.

    Raises:
        RuntimeError: the reward model gave no finite number.
    """
    if not math.isfinite(value):
        raise RuntimeError(f"the reward model gave {value} for a sample")
    total = score.value
    if weight:
        base = 0.0 if alone else score.value
        total = None if base is None else base + weight * value
    return dataclasses.replace(score, value=total, parts={**score.parts, MODEL: value})


def completion_text(sample: Sample, text: Tokenizer) -> str:
    """What the policy wrote, without the stop token that ended it."""
    ids = sample.completion.tolist()
    if not sample.truncated:
        ids = ids[:-1]
    return text.decode(ids)


def _job(prompt: Prompt, sample: Sample, text: Tokenizer) -> dict:
    return {
        "prompt": text.decode(list(prompt.ids), specials=True),
        "prompt_ids": prompt.ids,
        "completion": completion_text(sample, text),
        "completion_ids": sample.completion,
        "answer": prompt.row.answer,
        "answers": list(prompt.row.answers),
        "row": prompt.row.extra,
        "num_tokens": int(sample.policy_mask.sum()),
        "truncated": sample.truncated,
        "data_source": prompt.row.data_source,
    }


def records(scored: Sequence[Scored]) -> Iterator[dict]:
    """Samples as rows for the samples file, made when they are taken."""
    for s in scored:
        yield {
            "request": s.sample.request,
            "index": s.sample.index,
            "prompt": s.prompt.row.messages[-1]["content"],
            "completion": s.completion,
            "answer": s.prompt.row.answer,
            "score": s.score.value,
            "parts": s.score.parts,
            "verdict": s.score.verdict.value,
            "detail": s.score.detail,
            "num_tokens": int(s.sample.policy_mask.sum()),
            "stop_reason": s.sample.stop_reason,
        }
