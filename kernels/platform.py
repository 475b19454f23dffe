"""Which implementation of an op a program gets: that of the platform it is lowered for.

Compiling for a TPU on a CPU host takes the TPU's kernel, and a program that is lowered
for a platform without a kernel takes the plain form. `implementation=` of an op, or the
environment variable RL_JAX_KERNELS (read when a program is traced), overrides this for
debugging: "plain", "tpu", "gpu", or "tpu_interpret" and "gpu_interpret", which run the
Pallas kernels in their interpreter, on any platform and slowly.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

ENVIRONMENT = "RL_JAX_KERNELS"
CHOICES = ("plain", "tpu", "gpu", "tpu_interpret", "gpu_interpret")


class KernelError(ValueError):
    """A kernel cannot take these arguments; the message names the rule."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What block sizes depend on.

    Attributes:
        vmem_bytes: vector memory of one core, as `pltpu.get_tpu_info_for_chip` gives.
        matmul_flops: peak bfloat16 FLOP/s of what jax calls one device.
        memory_bytes_per_sec: high-bandwidth memory of one device.
    """

    name: str
    vmem_bytes: int
    matmul_flops: float
    memory_bytes_per_sec: float


# By device kind. Peaks as Google's documentation of each generation gives them a chip;
# a tpu7x chip is two devices, so its figures are halved.
_MIB = 2**20
GENERATIONS = {
    "TPU v5 lite": Generation("v5e", 128 * _MIB, 197e12, 819e9),
    "TPU v5": Generation("v5p", 64 * _MIB, 459e12, 2765e9),
    "TPU v6 lite": Generation("v6e", 128 * _MIB, 918e12, 1640e9),
    "TPU7x": Generation("tpu7x", 64 * _MIB, 1153e12, 3690e9),
}


def tpu_generation() -> Generation:
    """The generation of the TPUs in the mesh in context (`jax.set_mesh`).

    Raises:
        KernelError: if there is no mesh, or one of other devices.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    kind = None if device is None else device.device_kind
    if kind in GENERATIONS:
        return GENERATIONS[kind]
    found = "no mesh is in context" if kind is None else f"its devices are {kind!r}"
    raise KernelError(
        f"a TPU kernel's block sizes depend on the device kind of the mesh: {found}. "
        f"Expected one of {', '.join(map(repr, GENERATIONS))}: lower the program under "
        "jax.set_mesh(mesh) with a mesh of TPUs, or set RL_JAX_KERNELS=plain"
    )


def choose(
    *args: Any,
    plain: Callable[..., Any],
    tpu: Callable[..., Any],
    gpu: Callable[..., Any] | None,
    implementation: str | None = None,
) -> Any:
    """Calls one of the functions on `args`, by the platform of the lowered program.

    Args:
        plain, tpu, gpu: take `args`; `tpu` and `gpu` also `interpret=`. They raise
            `KernelError` for what they cannot take. No `gpu`: the plain form there.
        implementation: one of `CHOICES`; None: as RL_JAX_KERNELS says, else by
            platform.

    Raises:
        KernelError: if the choice is unknown, or (when the program is lowered for that
            platform, or the kernel is asked for by name) from the function, or if the
            mesh in context has other devices.
    """
    name = implementation or os.environ.get(ENVIRONMENT) or None
    found = _mesh_platform()
    functions = {"tpu": tpu, "gpu": gpu or plain}

    def kernel(base, *args, interpret=False):
        if not interpret and found not in (None, base):  # before anything is traced
            raise KernelError(f"a kernel for {base}s, but the mesh has {found}s")
        return functions[base](*args, interpret=interpret)

    if name is not None:
        if name not in CHOICES:
            raise KernelError(
                f"unknown implementation {name!r} of a kernel (an argument, or "
                f"{ENVIRONMENT} in the environment): expected one of "
                f"{', '.join(CHOICES)}"
            )
        if name == "plain" or (gpu is None and name.startswith("gpu")):
            return plain(*args)
        base, _, interpret = name.partition("_")
        return kernel(base, *args, interpret=bool(interpret))

    if found == "cpu":
        # The usual thing on a CPU: neither is Pallas imported nor a kernel traced.
        message = "a program under a mesh of CPUs is lowered for another platform"
        return _refused(plain(*args), message, allowed="cpu")

    def unless_refused(base, *args):
        try:
            return kernel(base, *args)
        except KernelError as error:
            # Only a program that is lowered for this platform has to know.
            return _refused(plain(*args), str(error))

    branches = {"tpu": functools.partial(unless_refused, "tpu")}
    if gpu is not None:
        branches["cuda"] = functools.partial(unless_refused, "gpu")
    return jax.lax.platform_dependent(*args, **branches, default=plain)


def forms(
    package: str, function: str, *, tpu: str = "tpu", gpu: str = "gpu", **static: Any
) -> dict[str, Callable[..., Any]]:
    """The three forms of an op's function, for `choose`.

    Args:
        package: the op's name, whose module `plain` has the function too.
        tpu, gpu: the modules of the kernels. They are imported when a program is traced
            that may need them, as Pallas takes a second to import.
        static: keywords of every form.
    """

    def form(module, *args, **keywords):
        found = importlib.import_module(f".{module}", package)
        return getattr(found, function)(*args, **static, **keywords)

    modules = {"plain": "plain", "tpu": tpu, "gpu": gpu}
    return {name: functools.partial(form, x) for name, x in modules.items()}


def _mesh_platform() -> str | None:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else device.platform


def result(
    shape: tuple[int, ...], dtype: Any, *like: jax.Array
) -> jax.ShapeDtypeStruct:
    """What a `pallas_call` returns: varying over the mesh axes that `like` vary over.

    Inside `jax.shard_map` with `check_vma=True` a kernel has to say so.
    """
    types: list[Any] = [jax.typeof(x) for x in like]
    varying = frozenset().union(*(t.manual_axis_type.varying for t in types))
    # Said also where it is over none of them: inside a shard_map silence is an error.
    axes: Any = type(types[0].manual_axis_type)(varying=varying)
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=axes)


def _refused(tree: Any, message: str, allowed: str = "") -> Any:
    """The arrays as they are; a KernelError when lowered for another platform."""
    bind = functools.partial(_refuse.bind, message=message, allowed=allowed)
    return jax.tree.map(bind, tree)


# The identity, except that it cannot be lowered but for the allowed platform: it stands
# where a kernel would, in programs that most likely are lowered for another one.
_refuse = Primitive("refused_kernel")
_refuse.def_impl(lambda x, **_: x)
_refuse.def_abstract_eval(lambda x, **_: x)
batching.defvectorized(_refuse)


def _lower(ctx, x, *, message, allowed):
    if tuple(ctx.module_context.platforms) != (allowed,):
        raise KernelError(message)
    return [x]


mlir.register_lowering(_refuse, _lower)
