"""One table of cases for every form of packed attention, and one for paged caches.

`draw(case)` makes the arrays, `expected(case)` the reference's results and gradients,
and `check` compares: float32 to 1e-5 (times the largest score where that is over 1,
since a score's own rounding is), bfloat16 to 1e-2 in norm.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head, W decode slots, M pages of S positions, J pages of a slot.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of packed attention.

    Attributes:
        rows: lengths of the segments of each row, in order; a negative one is padding,
            as is the rest of the row. Ids do not rise along a row.
        values: "normal"; "extreme": scores of exactly 1e4, -1e4 and 0, with ties.
        slow: of some forms, takes seconds.
    """

    name: str
    T: int
    rows: tuple[tuple[int, ...], ...]
    K: int = 2
    R: int = 3
    C: int = 8
    window: int | None = None
    softcap: float = 0.0
    dtype: str = "float32"
    values: str = "normal"
    slow: bool = False

    @property
    def scale(self) -> float:
        return 1.0 if self.values == "extreme" else self.C**-0.5

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, "softcap": self.softcap, "window": self.window}


_MIXED = ((3, 2, 1, 13), (19,), (4, -5, 6))
_LONG = ((40, 1, 150, 100),)

CASES = (
    Case("one token", 1, ((1,),)),
    Case("one token of padding", 1, ((),)),
    Case("ragged", 19, _MIXED),
    Case("one segment", 19, ((19,),)),
    Case("a row of padding", 7, ((), (5, 2))),
    Case("segments of one token", 19, ((1,) * 19, (1,) * 4)),
    Case("many segments", 45, ((5, 1, 9, 2, 2, 7, 3, 11, 4),)),
    Case("window of one", 19, _MIXED, window=1),
    Case("window", 19, _MIXED, window=5),
    Case("window beyond the row", 19, _MIXED, window=1000),
    Case("soft cap", 19, _MIXED, softcap=1.5),
    Case("one query head a key", 19, _MIXED, R=1),
    Case("eight query heads a key", 19, _MIXED, K=1, R=8),
    Case("extreme scores", 19, _MIXED, values="extreme"),
    Case("extreme scores, soft cap", 19, _MIXED, values="extreme", softcap=30.0),
    Case("odd channels, all options", 19, _MIXED, C=5, window=6, softcap=2.0),
    Case("bfloat16", 45, ((45,), (20, 9)), dtype="bfloat16"),
    Case(
        "bfloat16, all options", 45, ((45,),), dtype="bfloat16", window=9, softcap=2.0
    ),
    Case("many blocks", 300, _LONG, K=1, R=2),
    Case("many blocks, window", 300, ((300,),), K=1, R=2, window=90, slow=True),
    Case("many blocks, one segment", 300, ((300,),), K=1, R=2, slow=True),
    Case("many blocks, bfloat16", 384, ((384,),), K=1, dtype="bfloat16", softcap=5.0),
    Case("128 channels", 200, ((90, 80),), K=1, R=3, C=128, slow=True),
)


class Arrays(NamedTuple):
    """q, k, v and the cotangent of the output, in the case's dtype, and segments."""

    q_BTHC: np.ndarray
    k_BTKC: np.ndarray
    v_BTKC: np.ndarray
    segment_BT: np.ndarray
    d_out_BTHC: np.ndarray


class Results(NamedTuple):
    """What comes out, and the gradients."""

    out_BTHC: np.ndarray
    dq_BTHC: np.ndarray
    dk_BTKC: np.ndarray
    dv_BTKC: np.ndarray


def segments(rows: Sequence[Sequence[int]], T: int) -> np.ndarray:
    """int32 [B, T] of rows as `Case` describes them."""
    segment_BT = np.zeros((len(rows), T), np.int32)
    for b, row in enumerate(rows):
        at = 0
        for i, length in enumerate(row):
            # 7, 14, 2, 9, ...: no order, never 0, and other ones in other rows.
            segment_BT[b, at : at + abs(length)] = (length > 0) * (
                1 + 7 * (i + 1) % 19 + 19 * b
            )
            at += abs(length)
        assert at <= T
    return segment_BT


@functools.cache
def draw(case: Case) -> Arrays:
    """The arrays of a case; in padding stand values in the hundreds."""
    rng = np.random.default_rng(len(case.name) + case.T)
    segment_BT = segments(case.rows, case.T)
    B, H = len(case.rows), case.K * case.R
    shapes = [(B, case.T, n, case.C) for n in (H, case.K, case.K, H)]
    q, k, v, d_out = (rng.normal(size=shape) for shape in shapes)
    if case.values == "extreme":
        for x, near in ((q, 1), (k, 0)):
            # Products of -100, 0 and 100.
            x[:] = 0
            x[..., 0] = 100 * rng.integers(-1, 2, size=x.shape[:-1])
            x[..., 1] = near
    padding_BT = segment_BT == 0
    for x in (q, k, v):
        x[padding_BT] = 300 * rng.normal(size=x[padding_BT].shape)
    d_out[padding_BT] = 0
    q, k, v, d_out = (np.asarray(jnp.asarray(x, case.dtype)) for x in (q, k, v, d_out))
    return Arrays(q, k, v, segment_BT, d_out)


@functools.cache
def expected(case: Case) -> tuple[Results, float]:
    """(the reference's results, largest score)."""
    q, k, v, segment_BT, d_out = draw(case)
    dq, dk, dv = reference.packed_grads(q, k, v, segment_BT, d_out, **case.options)
    out = reference.packed(q, k, v, segment_BT, **case.options)
    results = Results(out, dq, dk, dv)
    return results, reference.largest_score(q, k, segment_BT, **case.options)


def outputs(case: Case, attend) -> Results:
    """Results and gradients of attend(q, k, v, segment), jitted."""
    q, k, v, segment_BT, d_out = draw(case)

    @jax.jit
    def run(q, k, v, d_out):
        out, pull = jax.vjp(lambda *qkv: attend(*qkv, segment_BT), q, k, v)
        return Results(out, *pull(d_out))

    return run(q, k, v, d_out)


def check(case: Case, results: Results) -> None:
    """Asserts that results are the reference's, wherever there is no padding."""
    want, largest = expected(case)
    live_BT11 = (draw(case).segment_BT != 0)[..., None, None]
    for name, got, exact in zip(Results._fields, results, want, strict=True):
        assert got.dtype == case.dtype, name
        got = np.asarray(got, np.float64)
        assert np.isfinite(got).all(), name
        if name == "out_BTHC":
            got = np.where(live_BT11, got, 0)
        if case.dtype == "bfloat16":
            error, allowed = np.linalg.norm(got - exact), 1e-2 * np.linalg.norm(exact)
        else:
            error = np.abs(got - exact).max()
            allowed = 1e-5 * max(1.0, np.abs(exact).max()) * max(1.0, largest)
        assert error <= allowed, (name, error, allowed)


@dataclasses.dataclass(frozen=True)
class PagedCase:
    """One call of paged attention.

    Attributes:
        lengths: positions of each slot.
    """

    name: str
    lengths: tuple[int, ...]
    K: int = 2
    R: int = 3
    C: int = 128
    S: int = 16
    window: int | None = None
    softcap: float = 0.0
    dtype: str = "float32"
    values: str = "normal"
    slow: bool = False

    @property
    def scale(self) -> float:
        return 1.0 if self.values == "extreme" else self.C**-0.5

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, "softcap": self.softcap, "window": self.window}


_LENGTHS = (1, 40, 16, 0, 17)

PAGED_CASES = (
    PagedCase("lengths of all kinds", _LENGTHS),
    PagedCase("one slot", (5,), R=1),
    PagedCase("all empty", (0, 0)),
    PagedCase("window of one", _LENGTHS, window=1),
    PagedCase("window over pages", _LENGTHS, window=18),
    PagedCase("window beyond all", _LENGTHS, window=1000),
    PagedCase("soft cap", _LENGTHS, softcap=1.5),
    PagedCase("eight query heads a key", _LENGTHS, K=1, R=8),
    PagedCase("extreme scores", _LENGTHS, values="extreme"),
    PagedCase("channels of a narrow head", _LENGTHS, C=64),
    PagedCase(
        "bfloat16, all options", _LENGTHS, dtype="bfloat16", window=18, softcap=2.0
    ),
    PagedCase("many steps", (700, 3, 1500), K=1, R=2, slow=True),
)


class PagedArrays(NamedTuple):
    q_WHC: np.ndarray
    k_pages_KMSC: np.ndarray
    v_pages_KMSC: np.ndarray
    page_WJ: np.ndarray
    length_W: np.ndarray


@functools.cache
def draw_paged(case: PagedCase) -> PagedArrays:
    """Arrays of a case; NaN stands in the cache wherever no slot's position is."""
    rng = np.random.default_rng(len(case.name))
    length_W = np.array(case.lengths, np.int32)
    W, J = len(length_W), max(-(-max(case.lengths) // case.S), 1) + 1
    M = W * J + 2
    page_WJ = rng.permutation(M)[: W * J].reshape(W, J).astype(np.int32)
    q = rng.normal(size=(W, case.K * case.R, case.C))
    k, v = (rng.normal(size=(case.K, M, case.S, case.C)) for _ in range(2))
    if case.values == "extreme":
        for x in (q, k):
            x[:] = 0
            x[..., 0] = 100 * rng.integers(-1, 2, size=x.shape[:-1])
    free_MS = np.ones((M, case.S), bool)
    for w, length in enumerate(length_W):
        oldest = 0 if case.window is None else max(0, length - case.window)
        for s in range(oldest, length):
            free_MS[page_WJ[w, s // case.S], s % case.S] = False
    for x in (k, v):
        x[:, free_MS] = np.nan
    q, k, v = (np.asarray(jnp.asarray(x, case.dtype)) for x in (q, k, v))
    return PagedArrays(q, k, v, page_WJ, length_W)


def check_paged(case: PagedCase, out_WHC) -> None:
    """Asserts that a result is the reference's."""
    q, k, v, page_WJ, length_W = draw_paged(case)
    want = reference.paged(q, k, v, page_WJ, length_W, **case.options)
    assert out_WHC.dtype == case.dtype
    assert out_WHC.shape == want.shape
    got = np.asarray(out_WHC, np.float64)
    if case.dtype == "bfloat16":
        assert np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)
    else:
        largest = 1e4 if case.values == "extreme" else 1.0
        assert np.abs(got - want).max() <= 1e-5 * largest
