"""Which implementation a program gets, and what is known of the TPUs it is for."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from rl_jax.kernels import platform  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    KernelError,
    choose,
)


def plain(x):
    return x * 2


def tpu(x, *, interpret):
    return x * (30 if interpret else 3)


def gpu(x, *, interpret):
    return x * (50 if interpret else 5)


def refusing(x, *, interpret):
    raise KernelError("x must be even")


SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def factor(text: str) -> float:
    """The only float that a lowered program holds."""
    (found,) = re.findall(r"stablehlo.constant dense<(.*)> : tensor<f32>", text)
    return float(found)


def lowered(platform, **functions):
    functions = {"plain": plain, "tpu": tpu, "gpu": gpu} | functions
    traced = jax.jit(functools.partial(choose, **functions)).trace(SCALAR)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    monkeypatch.delenv("RL_JAX_KERNELS", raising=False)


@pytest.mark.parametrize(
    ("name", "expected"), [("cpu", 2), ("tpu", 3), ("cuda", 5), ("rocm", 2)]
)
def test_a_program_gets_the_implementation_of_the_platform_it_is_lowered_for(
    name, expected
):
    assert factor(lowered(name)) == expected


def test_without_a_gpu_kernel_gpus_get_the_plain_form():
    assert factor(lowered("cuda", gpu=None)) == 2
    assert factor(lowered("tpu", gpu=None)) == 3
    assert choose(1.0, plain=plain, tpu=tpu, gpu=None, implementation="gpu") == 2


def test_what_runs_here_is_the_plain_form_jitted_or_not():
    call = functools.partial(choose, plain=plain, tpu=tpu, gpu=gpu)
    assert call(jnp.float32(1)) == jax.jit(call)(jnp.float32(1)) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", 2),
        ("tpu", 3),
        ("gpu", 5),
        ("tpu_interpret", 30),
        ("gpu_interpret", 50),
    ],
)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_an_override_holds_on_every_platform(name, expected, by, monkeypatch):
    if by == "environment":
        monkeypatch.setenv("RL_JAX_KERNELS", name)
    implementation = name if by == "argument" else None
    for on in ("cpu", "tpu", "cuda"):
        assert factor(lowered(on, implementation=implementation)) == expected


def test_the_argument_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("RL_JAX_KERNELS", "tpu")
    assert factor(lowered("cpu", implementation="gpu")) == 5
    monkeypatch.setenv("RL_JAX_KERNELS", "")  # as if it were not set
    assert factor(lowered("cpu")) == 2


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(monkeypatch):
    for name in ("Plain", "cpu", "tpu_"):
        with pytest.raises(KernelError, match=f"'{name}'.*plain, tpu, gpu, tpu_inter"):
            lowered("cpu", implementation=name)
    monkeypatch.setenv("RL_JAX_KERNELS", "pallas")
    with pytest.raises(KernelError, match="'pallas'.*RL_JAX_KERNELS"):
        lowered("cpu")


def test_a_refusal_concerns_only_programs_lowered_for_that_platform():
    call = functools.partial(choose, plain=plain, tpu=refusing, gpu=gpu)
    assert jax.jit(call)(jnp.float32(1)) == 2
    assert factor(lowered("cpu", tpu=refusing)) == 2
    assert factor(lowered("cuda", tpu=refusing)) == 5
    traced = jax.jit(call).trace(SCALAR)
    with pytest.raises(KernelError, match="x must be even"):
        traced.lower(lowering_platforms=("tpu",))
    with pytest.raises(KernelError, match="x must be even"):  # asked for by name
        jax.jit(functools.partial(call, implementation="tpu")).trace(SCALAR)


def test_an_error_of_another_kind_in_a_kernel_is_not_hidden():
    def broken(x, *, interpret):
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        lowered("cpu", tpu=broken)


def of_generation(x, *, interpret):
    return x * len(platform.tpu_generation().name)


def mesh_of(kind, platform="tpu"):
    device = jax.sharding.AbstractDevice(kind, num_cores=1, platform=platform)
    axes = (jax.sharding.AxisType.Explicit,)
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axes, abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def test_block_sizes_without_a_tpu_in_context_are_an_error_when_lowered_for_tpus():
    call = functools.partial(choose, plain=plain, tpu=of_generation, gpu=gpu)
    traced = jax.jit(call).trace(SCALAR)  # which the CPU takes as it is
    assert factor(traced.lower(lowering_platforms=("cpu",)).as_text()) == 2
    with pytest.raises(KernelError, match="no mesh is in context.*jax.set_mesh"):
        traced.lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize("kind", platform.GENERATIONS)
def test_the_generation_is_that_of_the_mesh_in_context(kind):
    with mesh_of(kind):
        assert platform.tpu_generation() is platform.GENERATIONS[kind]
        # 3 for v5e, v5p and v6e; 5 for tpu7x.
        assert factor(lowered("tpu", tpu=of_generation)) in (3, 5)


def test_a_mesh_of_other_devices_has_no_generation():
    with jax.set_mesh(jax.make_mesh((2,), ("x",))):
        with pytest.raises(KernelError, match="its devices are 'cpu'.*'TPU v5 lite'"):
            platform.tpu_generation()
    with mesh_of("TPU v3"), pytest.raises(KernelError, match="are 'TPU v3'"):
        platform.tpu_generation()


@pytest.mark.parametrize(
    ("kind", "version", "num_cores"),
    [
        ("TPU v5 lite", "TPU_V5E", 1),
        ("TPU v5", "TPU_V5P", 2),
        ("TPU v6 lite", "TPU_V6E", 1),
        ("TPU7x", "TPU_7X", 1),
    ],
)
def test_the_vector_memory_of_each_generation_is_what_jax_says(
    kind, version, num_cores
):
    chip = getattr(pltpu.ChipVersion, version)
    info = pltpu.get_tpu_info_for_chip(chip, num_cores)
    assert platform.GENERATIONS[kind].vmem_bytes == info.vmem_capacity_bytes


def test_a_kernels_result_varies_over_the_axes_of_what_it_is_made_from():
    outside = platform.result((3,), jnp.float32, jnp.ones(2), jnp.ones(3))
    assert (outside.shape, outside.dtype) == ((3,), np.float32)
    seen = []

    def local(x, y):
        seen.append(platform.result((3,), jnp.float32, x, y))
        seen.append(platform.result((3,), jnp.float32, jnp.ones(2)))
        return jax.lax.psum(x, "a"), y

    mesh = jax.make_mesh(
        (2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    specs = (jax.P("a"), jax.P("b"))
    function = jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=(jax.P(), specs[1])
    )
    jax.eval_shape(function, jnp.ones(2), jnp.ones(2))
    assert [s.manual_axis_type.varying for s in seen] == [{"a", "b"}, frozenset()]
