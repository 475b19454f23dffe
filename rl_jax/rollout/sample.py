"""What goes into the engine and what comes out of it."""

import dataclasses

import numpy as np

# Streams of draws that must never meet: the same request id in two streams draws
# different numbers.
TRAIN_STREAM = 0
EVAL_STREAM = 1
GENERATE_STREAM = 2


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt to be answered `num_samples` times.

    Attributes:
        id: unique within its stream; with the seed, the sample's index and the
            position it fixes every draw.
        prompt: token ids.
        temperature: 0 takes the likeliest token.
        stream: one of the `_STREAM` constants.
    """

    id: int
    prompt: tuple[int, ...]
    num_samples: int
    max_new_tokens: int
    temperature: float = 1.0
    stream: int = TRAIN_STREAM


@dataclasses.dataclass(frozen=True)
class Sample:
    """One finished answer. All arrays cover prompt and answer, [n] each.

    Attributes:
        request: id of the request, which is also the id of its group.
        index: which of the request's samples, from 0.
        tokens: int32 ids.
        policy_mask: bool, tokens that the policy chose; they may interleave with
            text from elsewhere.
        sampler_logp: float32 log-probability of each chosen token in the
            distribution after temperature; 0 where the policy chose nothing. At
            temperature 0 it is that of temperature 1.
        version: int32 version of the weights that drew each token; -1 elsewhere.
        stop_reason: "stop" (a stop token was drawn) or "length".
    """

    request: int
    index: int
    tokens: np.ndarray
    policy_mask: np.ndarray
    sampler_logp: np.ndarray
    version: np.ndarray
    stop_reason: str

    @property
    def completion(self) -> np.ndarray:
        """The ids that the policy chose."""
        return self.tokens[self.policy_mask]

    @property
    def truncated(self) -> bool:
        return self.stop_reason == "length"
