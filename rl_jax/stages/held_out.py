"""The loss on what is held out: the mean over all its tokens, whatever the packing."""

import dataclasses
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.learner import Batch, batch_logprobs, to_device
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec

# nll(params, batch) -> the sum of -logp over the tokens that count, float32 scalar
Program = Callable[[Params, Batch], jax.Array]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Packed once, measured many times.

    Attributes:
        batches: of the same shape, on the host.
        num_tokens: that count, in all of them.
    """

    batches: list[Packed]
    num_tokens: int


def packed(pieces: Iterable[Piece], *, row_tokens: int, rows: int) -> HeldOut:
    """Pieces in batches of `rows` rows of `row_tokens` tokens; no pieces: no batches.

    Raises:
        ValueError: if a piece is longer than a row.
    """
    pieces = list(pieces)
    if not pieces:
        return HeldOut([], 0)
    whole = pack(pieces, row_tokens, rows)
    starts = range(0, len(whole.token_BT), rows)
    batches = [whole.rows(start, start + rows) for start in starts]
    return HeldOut(batches, int(whole.mask_BT.sum()))


def make_program(model: ModelSpec) -> Program:
    """The program that `mean_loss` calls, compiled when it is first called."""

    def nll(params: Params, batch: Batch) -> jax.Array:
        logp_BT, _ = batch_logprobs(params, batch, model=model, temperature=1.0)
        return -jnp.sum(jnp.where(batch.mask_BT, logp_BT, 0.0))

    return jax.jit(nll)


def mean_loss(
    program: Program,
    params: Params,
    held_out: HeldOut,
    mesh: Mesh,
    *,
    check_stop: Callable[[], None] = lambda: None,
) -> float:
    """-sum(logp) / tokens over all that is held out, nats.

    A batch is sent while the one before is computed, and no more than that, so that
    a large set does not fill the device. Sums of batches are added in float64.

    Args:
        check_stop: called before each batch; may raise to abandon everything.
    """
    total, waiting = 0.0, None
    for batch in held_out.batches:
        check_stop()
        found = program(params, to_device(batch, mesh))
        if waiting is not None:
            total += float(waiting)
        waiting = found
    if waiting is not None:
        total += float(waiting)
    return total / max(held_out.num_tokens, 1)
