"""Log-probability and KL of heads divided over mesh axes: equal to undivided ones.

Legend: N tokens, D model width, V vocabulary.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import logprob_cases as table
import numpy as np
import pytest
from logprob_cases import Case

from rl_jax.kernels import logprob  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    KernelError,
)

token_logprob = functools.partial(logprob.token_logprob, implementation="plain")
token_kl = functools.partial(logprob.token_kl, implementation="plain")

# Rows are divided in every case.
SHARDED: dict[str, dict[str, Any]] = {
    "rows": {},
    "vocabulary": {"vocab_axis": "vocab"},
    "width": {"width_axis": "width"},
    "vocabulary and width": {"vocab_axis": "vocab", "width_axis": "width"},
    "width, [D, V]": {"width_axis": "width", "layout": "DV"},
    "vocabulary and width, [D, V]": {
        "vocab_axis": "vocab",
        "width_axis": "width",
        "layout": "DV",
    },
}
STUDENT = ("hidden_ND", "weight", "bias_V")
TEACHER = ("teacher_hidden_NE", "teacher_weight", "teacher_bias_V")
OPTIONS: dict[str, Any] = {"temperature": 0.7, "softcap": 3.0}


def _inputs(layout, kl, mask):
    """Arrays by the names of the functions' arguments, and cotangents."""
    case = Case("shards", N=12, V=24, D=6, mask=mask, bias=True, layout=layout)
    model, target_N, mask_N, d_out = table.draw(case)
    arrays: dict[str, Any] = dict(zip(STUDENT, model[:3], strict=True))
    if mask_N is not None:
        arrays["mask_N"] = mask_N
    if not kl:
        return arrays | {"target_N": target_N}, logprob.Logprob(*d_out)
    case = Case("teacher", N=12, V=24, D=10, bias=True, layout=layout)
    teacher = table.draw(case).model
    arrays.update(zip(TEACHER, teacher[:3], strict=True))
    return arrays, logprob.KL(*d_out[:2])


def _specs(names, vocab_axis=None, width_axis=None, layout="VD"):
    weight = jax.P(*(vocab_axis if letter == "V" else width_axis for letter in layout))
    kinds = {"hidden": jax.P("rows", width_axis), "weight": weight}
    kinds |= {"bias": jax.P(vocab_axis), "target": jax.P("rows"), "mask": jax.P("rows")}
    return {n: kinds[n.removeprefix("teacher_").partition("_")[0]] for n in names}


def _values_and_gradients(call, arrays, d_out):
    def run(arrays):
        student = {n: arrays[n] for n in STUDENT}
        out, pull = jax.vjp(lambda student: call(arrays | student), student)
        return out, pull(d_out)[0]

    return jax.jit(run)(arrays)


def _both(axes, *, check_vma=True, kl=False, mask="some"):
    """(values, gradients) of sharded and of unsharded calls on the same inputs."""
    layout = axes.get("layout", "VD")
    arrays, d_out = _inputs(layout, kl, mask)
    function = functools.partial(token_kl if kl else token_logprob, **OPTIONS)
    if kl:
        function = functools.partial(function, teacher_layout=layout)

    def call(arrays, **options):
        return function(**arrays, **options)

    specs = _specs(arrays, **axes)
    mesh = jax.make_mesh(
        (2, 2, 2),
        ("rows", "vocab", "width"),
        axis_types=(jax.sharding.AxisType.Explicit,) * 3,
    )
    with jax.set_mesh(mesh):
        sharded = jax.shard_map(
            functools.partial(call, **axes),
            in_specs=(specs,),
            out_specs=jax.P("rows"),
            check_vma=check_vma,
        )
        put = {
            name: jax.device_put(x, jax.NamedSharding(mesh, specs[name]))
            for name, x in arrays.items()
        }
        got = _values_and_gradients(sharded, put, d_out)
    for name, x in got[1].items():
        spec = jax.NamedSharding(mesh, specs[name])
        assert x.sharding.is_equivalent_to(spec, x.ndim)
    call = functools.partial(call, layout=layout)
    return got, _values_and_gradients(call, arrays, d_out)


def _assert_near(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.isfinite(y).all()
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_equals_unsharded(name):
    _assert_near(*_both(SHARDED[name]))


@pytest.mark.parametrize("name", ["vocabulary", "vocabulary and width, [D, V]"])
def test_the_sharded_kl_equals_the_unsharded(name):
    _assert_near(*_both(SHARDED[name], kl=True))


@pytest.mark.parametrize("kl", [False, True])
def test_sharded_equals_unsharded_where_jax_does_not_check_what_varies(kl):
    axes = SHARDED["vocabulary and width"]
    _assert_near(*_both(axes, check_vma=False, kl=kl))


def test_sharded_equals_unsharded_without_a_mask():
    _assert_near(*_both(SHARDED["vocabulary and width"], mask="none"))


def test_a_vocabulary_that_the_axis_of_the_width_does_not_divide_is_an_error():
    mesh = jax.make_mesh((8,), ("width",), axis_types=(jax.sharding.AxisType.Auto,))
    call = functools.partial(token_logprob, width_axis="width")
    specs = (jax.P(None, "width"), jax.P(None, "width"), jax.P())
    sharded = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=jax.P())
    with pytest.raises(KernelError, match="'width'.* 20 words .* size 8"):
        sharded(jnp.ones((3, 8)), jnp.ones((20, 8)), jnp.zeros(3, int))
