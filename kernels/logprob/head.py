"""What the implementations of `logprob` share: the head, its options, their results.

plain.py, tpu.py and gpu.py have the same four functions, of one shard, without
collectives; `__init__.py` combines shards and holds the gradients' rules.

    stats(hidden_ND, head, target_N, num_live, logits) -> Stats
    grads(hidden_ND, head, target_N, num_live, lse_N, entropy_N, d_logp_N, d_entropy_N,
          d_lse_N, logits) -> (d_hidden_ND, d_weight, d_bias_V or None)
    kl_stats(hidden_ND, head, teacher_hidden_NE, teacher_head, num_live, logits,
             teacher_logits) -> KLStats
    kl_grads(hidden_ND, head, teacher_hidden_NE, teacher_head, num_live, lse_N,
             teacher_lse_N, reverse_N, d_reverse_N, d_forward_N, logits, teacher_logits)
          -> (d_hidden_ND, d_weight, d_bias_V or None), of the student only

`target_N` is int32 and counts from this shard's first row: one below 0 or at V or more
is another shard's. Tokens from `num_live` (an int32 scalar) on are masked: whole tiles
of them cost nothing, what is returned for them is anything finite, and they add nothing
to the gradients. `__init__.py` gives them hidden states and cotangents of zero.

Legend: N tokens, D model width (E the teacher's), V vocabulary of this shard.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax

Layout = Literal["VD", "DV"]


class Head(NamedTuple):
    """An output head: [V, D] or [D, V] as `Logits.layout` says, and a bias or None."""

    weight: jax.Array
    bias_V: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Logits:
    """How logits come from hidden states; hashable, so that it can be static.

    z = cap(hidden @ head.T + bias) / temperature, cap(x) = softcap * tanh(x / softcap)

    Attributes:
        layout: axes of the head's weight.
        temperature: the sampling temperature.
        softcap: bound of the logits before the temperature; 0: none.
    """

    layout: Layout = "VD"
    temperature: float = 1.0
    softcap: float = 0.0

    @property
    def vocab_dim(self) -> int:
        """The weight's axis that runs over the vocabulary."""
        return self.layout.index("V")

    @property
    def width_dim(self) -> int:
        """The weight's axis that runs over the model width."""
        return self.layout.index("D")


class Stats(NamedTuple):
    """What one shard knows of a distribution, [N] float32 each.

    top = max_v z; sum = sum_v exp(z - top); dot = sum_v exp(z - top) * (z - top);
    target = z of the target, 0 where the target is another shard's.
    """

    top_N: jax.Array
    sum_N: jax.Array
    dot_N: jax.Array
    target_N: jax.Array


class KLStats(NamedTuple):
    """What one shard knows of a student and its teacher, [N] float32 each.

    top, sum: as in `Stats`, of the student; teacher_top, teacher_sum: of the teacher;
    dot = sum_v exp(zs - top) * (zs - zt);
    teacher_dot = sum_v exp(zt - teacher_top) * (zt - zs).

    So reverse = dot / sum - lse + teacher_lse, forward = teacher_dot / teacher_sum -
    teacher_lse + lse.
    """

    top_N: jax.Array
    sum_N: jax.Array
    dot_N: jax.Array
    teacher_top_N: jax.Array
    teacher_sum_N: jax.Array
    teacher_dot_N: jax.Array
