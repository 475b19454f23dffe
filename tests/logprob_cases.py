"""One table of cases for every implementation of the log-probability kernels.

`outputs(case, implementation)` runs the public function and its gradients,
`expected(case)` the reference, `check` compares them; `kl_outputs` and `kl_expected`
are the same for `KL_CASES`. Hidden states of masked tokens are NaN.

Legend: N tokens, D model width (E the teacher's), V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import logprob_reference as reference
import numpy as np

from rl_jax.kernels import logprob  # pyright: ignore[reportMissingImports]


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes, dtypes ("float32" or "bfloat16") and options of one call.

    Attributes:
        mask: "none": no mask is given; "some": about a third of the tokens do not
            count; "one": only the last counts; "all": none counts, all are masked.
        values: "normal": logits of a few units; "large": random ones up to 1e4;
            "extreme": exactly +-1e4 and 0: one ahead of all others, two that tie,
            all low, and a target without a chance.
    """

    name: str
    N: int = 5
    V: int = 17
    D: int = 3
    hidden: str = "float32"
    head: str = "float32"
    layout: str = "VD"
    bias: bool = False
    temperature: float = 1.0
    softcap: float = 0.0
    mask: str = "none"
    values: str = "normal"

    @property
    def low(self) -> bool:
        """True if every input is bfloat16."""
        return self.hidden == self.head == "bfloat16"


_LOW: dict[str, Any] = {"hidden": "bfloat16", "head": "bfloat16"}
_ALL: dict[str, Any] = {"bias": True, "temperature": 0.7, "softcap": 3.0}

CASES = (
    Case("tiny"),
    Case("one token", N=1),
    Case("one word", V=1),
    Case("one width", D=1),
    Case("ragged", N=37, V=301, D=29),
    Case("whole tiles", N=128, V=512, D=128),
    Case("many tiles, ragged", N=301, V=1031, D=130),
    Case("many tiles, bfloat16", N=301, V=1031, D=130, **_LOW),
    Case("[D, V]", N=37, V=301, D=29, layout="DV"),
    Case("[D, V], many tiles", N=150, V=700, D=136, layout="DV", **_ALL),
    Case("bias", N=7, V=45, D=5, bias=True),
    Case("temperature", N=7, V=45, D=5, temperature=0.6),
    Case("soft cap", N=7, V=45, D=5, softcap=2.0),
    Case("bias, soft cap, temperature", N=37, V=301, D=29, **_ALL),
    Case("bfloat16", N=37, V=301, D=29, **_LOW),
    Case(
        "bfloat16, all options, [D, V]", N=37, V=301, D=29, layout="DV", **_ALL, **_LOW
    ),
    Case("bfloat16 hidden, float32 head", N=37, V=301, D=29, hidden="bfloat16"),
    Case("float32 hidden, bfloat16 head", N=37, V=301, D=29, head="bfloat16"),
    Case("some masked", N=301, V=130, D=29, mask="some", **_ALL),
    Case("some masked, bfloat16", N=301, V=130, D=29, mask="some", **_LOW),
    Case("all but one masked", N=301, V=130, D=29, mask="one"),
    Case("everything masked", N=37, V=130, D=29, mask="all", bias=True),
    Case("extreme", N=5, V=300, D=5, values="extreme"),
    Case("extreme, bfloat16", N=5, V=300, D=5, values="extreme", **_LOW),
    Case("extreme, soft cap", N=5, V=300, D=5, values="extreme", softcap=30.0),
    Case("large", N=37, V=301, D=29, values="large"),
    Case("large, bfloat16", N=37, V=301, D=29, values="large", **_LOW),
)


class KLCase(NamedTuple):
    """A student and a teacher of the same N, V and temperature; the student's mask."""

    name: str
    student: Case
    teacher: Case


def _pair(name, N, V, student, teacher) -> KLCase:
    teacher = {**teacher, "temperature": student.get("temperature", 1.0)}
    return KLCase(
        name,
        Case(f"{name}, student", N, V, **student),
        Case(f"{name}, teacher", N, V, **teacher),
    )


KL_CASES = (
    _pair("tiny", 5, 17, {}, {"D": 4}),
    _pair("one token", 1, 17, {}, {"D": 4}),
    _pair("one word", 5, 1, {}, {"D": 4}),
    _pair("ragged", 37, 301, {"D": 29, **_ALL}, {"D": 40, "layout": "DV"}),
    _pair("many tiles", 301, 1031, {"D": 130, "layout": "DV"}, {"D": 70}),
    _pair("bfloat16", 150, 700, {"D": 136, **_LOW}, {"D": 70, **_LOW}),
    _pair("bfloat16 teacher", 37, 301, {"D": 29}, {"D": 40, **_LOW, "softcap": 5.0}),
    _pair("mixed", 37, 301, {"D": 29, "hidden": "bfloat16"}, {"D": 40, "bias": True}),
    _pair("some masked", 301, 130, {"D": 29, "mask": "some", **_ALL}, {"D": 40}),
    _pair("everything masked", 37, 130, {"D": 29, "mask": "all"}, {"D": 40}),
    _pair("extreme", 5, 300, {"D": 5, "values": "extreme"}, {"D": 8}),
    _pair(
        "both extreme",
        5,
        300,
        {"D": 5, "values": "extreme"},
        {"D": 5, "values": "extreme"},
    ),
    _pair("large", 37, 301, {"D": 29, "values": "large"}, {"D": 40, "values": "large"}),
)


def names(cases) -> list[str]:
    """Ids for `pytest.mark.parametrize`."""
    return [case.name for case in cases]


class Inputs(NamedTuple):
    """What a call takes, as NumPy arrays in their dtypes, and three cotangents."""

    model: reference.Model
    target_N: np.ndarray
    mask_N: np.ndarray | None
    d_out: tuple[np.ndarray, ...]  # three [N] float32


def draw(case: Case) -> Inputs:
    """The case's inputs, the same each time."""
    rng = np.random.default_rng(list(case.name.encode()))
    hidden_ND, weight_VD = _numbers(case, rng)
    bias_V = rng.normal(size=case.V) if case.bias else None
    target_N = rng.integers(0, case.V, case.N).astype(np.int32)
    target_N[0], target_N[-1] = 0, case.V - 1
    mask_N = {
        "none": None,
        "some": rng.random(case.N) > 1 / 3,
        "one": np.arange(case.N) == case.N - 1,
        "all": np.zeros(case.N, bool),
    }[case.mask]
    if mask_N is not None:
        hidden_ND[~mask_N] = np.nan
    weight = weight_VD if case.layout == "VD" else weight_VD.T.copy()
    return Inputs(
        reference.Model(
            _cast(hidden_ND, case.hidden),
            _cast(weight, case.head),
            None if bias_V is None else _cast(bias_V, case.head),
            case.layout,
            case.temperature,
            case.softcap,
        ),
        target_N,
        mask_N,
        tuple(rng.normal(size=case.N).astype(np.float32) for _ in range(3)),
    )


def _numbers(case, rng):
    """Float64 hidden states and a [V, D] head that give the values asked for."""
    N, V, D = case.N, case.V, case.D
    if case.values == "extreme":
        # One width a token, so that every product is exact.
        assert N == D == 5 and V > 20
        z_NV = np.full((N, V), -1e4)
        z_NV[0, 0] = 1e4  # the target itself, ahead by 20,000 nats
        z_NV[1, V - 9 : V - 7] = 1e4  # two that tie
        z_NV[3] = np.where(np.arange(V) % 2, 0.0, 1e4)
        z_NV[4, 2] = 1e4  # the target, the last word, has no chance
        return np.eye(N), z_NV.T.copy()
    hidden_ND = rng.normal(size=(N, D))
    weight_VD = rng.normal(size=(V, D)) * (2 / np.sqrt(D))
    if case.values == "large":
        weight_VD *= 1e4 / np.abs(hidden_ND @ weight_VD.T).max()
    return hidden_ND, weight_VD


def _cast(x, dtype):
    return np.asarray(x, jnp.bfloat16 if dtype == "bfloat16" else np.float32)


def outputs(case: Case, implementation: str | None = None) -> dict[str, np.ndarray]:
    """Values and gradients from `token_logprob`, jitted."""
    model, target_N, mask_N, d_out = draw(case)

    def run(hidden_ND, weight, bias_V):
        def call(hidden_ND, weight, bias_V):
            return logprob.token_logprob(
                hidden_ND,
                weight,
                target_N,
                mask_N=mask_N,
                bias_V=bias_V,
                layout=case.layout,
                temperature=case.temperature,
                softcap=case.softcap,
                implementation=implementation,
            )

        out, pull = jax.vjp(call, hidden_ND, weight, bias_V)
        return out, pull(logprob.Logprob(*map(jnp.asarray, d_out)))

    out, grads = jax.jit(run)(model.hidden_ND, model.weight, model.bias_V)
    return _named(out, grads)


@functools.cache
def expected(case: Case) -> dict[str, np.ndarray]:
    """The same from the reference."""
    model, target_N, mask_N, d_out = draw(case)
    out = reference.token_logprob(model, target_N, mask_N)
    grads = reference.logprob_grads(model, target_N, d_out, mask_N)
    return _named(out, grads)


def kl_outputs(case: KLCase, implementation: str | None = None):
    """Values and the student's gradients from `token_kl`, jitted."""
    student, _, mask_N, d_out = draw(case.student)
    teacher = draw(case.teacher).model

    def run(hidden_ND, weight, bias_V, teacher_hidden_NE, teacher_weight, teacher_bias):
        def call(hidden_ND, weight, bias_V):
            return logprob.token_kl(
                hidden_ND,
                weight,
                teacher_hidden_NE,
                teacher_weight,
                mask_N=mask_N,
                bias_V=bias_V,
                teacher_bias_V=teacher_bias,
                layout=student.layout,
                teacher_layout=teacher.layout,
                temperature=student.temperature,
                softcap=student.softcap,
                teacher_softcap=teacher.softcap,
                implementation=implementation,
            )

        out, pull = jax.vjp(call, hidden_ND, weight, bias_V)
        return out, pull(logprob.KL(*map(jnp.asarray, d_out[:2])))

    return _named(*jax.jit(run)(*student[:3], *teacher[:3]))


@functools.cache
def kl_expected(case: KLCase) -> dict[str, np.ndarray]:
    """The same from the reference."""
    student, _, mask_N, d_out = draw(case.student)
    teacher = draw(case.teacher).model
    out = reference.token_kl(student, teacher, mask_N)
    return _named(out, reference.kl_grads(student, teacher, d_out[:2], mask_N))


def _named(out, grads):
    named = {**out._asdict()}
    named |= dict(zip(("d_hidden_ND", "d_weight", "d_bias_V"), grads, strict=True))
    return {name: np.asarray(x) for name, x in named.items() if x is not None}


def check(case: Case | KLCase, got: dict, want: dict) -> None:
    """Asserts that all is finite, masked tokens are 0 and errors are within bounds.

    Of the largest value: 1e-5; with extreme or large logits an absolute error of 1e-5
    times the largest |logit|. In norm, where all inputs or the gradient itself are
    bfloat16: 1e-2.
    """
    cases = [case] if isinstance(case, Case) else [case.student, case.teacher]
    drawn = draw(cases[0])
    for name, x in got.items():
        error = x.astype(np.float64) - want[name]
        assert x.shape == want[name].shape, name
        assert np.isfinite(x.astype(np.float64)).all(), name
        if drawn.mask_N is not None and "_N" in name:
            assert not x[~drawn.mask_N].any(), f"{name} of masked tokens"
        if any(c.values != "normal" for c in cases):
            bound = 1e-5 * max(1.0, *(largest(c) for c in cases))
            # A gradient is in units of the weights, which reach the same size.
            bound *= max(1.0, np.abs(want[name]).max()) if name[:2] == "d_" else 1.0
            if x.dtype != np.float32:
                bound += 2**-8 * np.abs(want[name]).max()
            assert np.abs(error).max() <= bound, (name, np.abs(error).max(), bound)
        elif x.dtype != np.float32 or any(c.low for c in cases):
            norm = max(np.linalg.norm(want[name]), 1e-3)
            assert np.linalg.norm(error) <= 1e-2 * norm, name
        else:
            top = max(np.abs(want[name]).max(), 0.1)
            assert np.abs(error).max() <= 1e-5 * top, (name, np.abs(error).max() / top)


@functools.cache
def largest(case: Case) -> float:
    """Largest |logit| of the tokens that count."""
    drawn = draw(case)
    return reference.largest_logit(drawn.model, drawn.mask_N)
