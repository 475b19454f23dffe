"""The loss on held-out tokens against a slow twin, whatever the packing."""

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.data.packing import Piece
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.decoder import gather_head, hidden_states
from rl_jax.stages import held_out

V = tiny.V


@pytest.fixture(scope="module")
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture(scope="module")
def params(mesh):
    return tiny.random_params(mesh, seed=3)


@pytest.fixture(scope="module")
def expected(params, mesh):
    return slow_mean_loss(params, mesh)


@pytest.fixture(scope="module")
def program():
    return held_out.make_program(tiny.MODEL)


def make_pieces():
    rng = np.random.default_rng(0)
    pieces = []
    for length, read in ((7, 3), (4, 1), (11, 5), (2, 1), (6, 6), (5, 2), (3, 1)):
        tokens = rng.integers(0, V, length).astype(np.int32)
        pieces.append(Piece(tokens, np.arange(length) >= read))
    return pieces


PIECES = make_pieces()


def slow_mean_loss(params, mesh):
    """One sequence at a time, from whole logits, in float64."""
    total, count = 0.0, 0
    for piece in PIECES:
        n = len(piece.tokens)
        arrays = (piece.tokens[:-1], np.arange(n - 1), np.ones(n - 1))
        rows = sharding(mesh, "batch", "time")
        token_BT, position_BT, segment_BT = (
            jax.device_put(x.astype(np.int32)[None], rows) for x in arrays
        )
        hidden_BTD = hidden_states(
            params, token_BT, position_BT, segment_BT, tiny.MODEL
        )
        head_VD = np.asarray(gather_head(params, tiny.MODEL), np.float64)
        logits_TV = np.asarray(hidden_BTD, np.float64)[0] @ head_VD.T
        for t in range(n - 1):
            if piece.mask[t + 1]:
                z = logits_TV[t] - logits_TV[t].max()
                total -= z[piece.tokens[t + 1]] - np.log(np.exp(z).sum())
                count += 1
    return total / count


@pytest.mark.parametrize(("row_tokens", "rows"), [(10, 1), (10, 3), (24, 2), (64, 1)])
def test_it_is_the_mean_over_all_tokens_whatever_the_packing(
    mesh, params, program, expected, row_tokens, rows
):
    packed = held_out.packed(PIECES, row_tokens=row_tokens, rows=rows)
    assert packed.num_tokens == sum(piece.mask[1:].sum() for piece in PIECES)
    assert {batch.token_BT.shape for batch in packed.batches} == {(rows, row_tokens)}
    found = held_out.mean_loss(program, params, packed, mesh)
    assert found == pytest.approx(expected, rel=0, abs=1e-6)


def test_it_is_compiled_once(mesh, params):
    program = held_out.make_program(tiny.MODEL)
    packed = held_out.packed(PIECES, row_tokens=10, rows=1)
    assert len(packed.batches) > 2
    for _ in range(2):
        held_out.mean_loss(program, params, packed, mesh)
    assert program._cache_size() == 1  # pyright: ignore[reportFunctionMemberAccess]


def test_it_can_be_abandoned_between_batches(mesh, params, program):
    def stop():
        raise KeyboardInterrupt

    packed = held_out.packed(PIECES, row_tokens=10, rows=1)
    with pytest.raises(KeyboardInterrupt):
        held_out.mean_loss(program, params, packed, mesh, check_stop=stop)


def test_nothing_held_out_has_no_batches():
    assert held_out.packed([], row_tokens=10, rows=2) == held_out.HeldOut([], 0)
