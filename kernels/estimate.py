"""What the TPU compiler makes of the kernels, on a machine without a TPU.

Run:   python -m rl_jax.kernels.estimate
       python -m rl_jax.kernels.estimate --op=logprob --generation=v5e,v5p --largest
Needs: libtpu, of the version that jax[tpu] asks for; it runs on a CPU host.

Each program is compiled ahead of time in a process of its own, which prints what the
compiler says of memory. For the log-probability it also prints an estimate of the
time: cycles of the final instruction bundles (`bundles.py`) over the clock, or the
memory traffic of the blocks over the bandwidth if that takes longer, plus the copies
that nothing can hide (the first blocks and the last), plus the cycles that the compiler
itself gives for the operations around the kernels. It is a LOWER BOUND: a chip also
waits for memory conflicts, late copies and its clock. Nothing here was timed on a chip.

Legend: N tokens, D model width, V vocabulary.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .bundles import kernels as read_kernels
from .logprob import token_logprob
from .logprob.blocks import (
    Blocks,
    Width,
    grads_blocks,
    grads_bytes,
    grads_traffic,
    num_cores,
    stats_blocks,
    stats_traffic,
    vmem_limit_bytes,
)
from .logprob.head import Head, Logits
from .platform import GENERATIONS, Generation

TOPOLOGIES = {
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
# Hz. With the matrix units' size these reproduce the published peaks; those of v6e and
# tpu7x are not published as such, so they are derived from it.
CLOCKS = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 2.2e9}
ASSUMED = ("v6e", "tpu7x")


class Shape(NamedTuple):
    N: int
    D: int
    V: int

    def __str__(self):
        return f"N={self.N:,} D={self.D:,} V={self.V:,}"


# Qwen3-8B and Llama-3.2-1B, with what one device may see of a batch.
SHAPES = (Shape(8192, 4096, 151936), Shape(8192, 2048, 128256))


class Program(NamedTuple):
    """A program to compile: its function, and the shapes of what it takes.

    Attributes:
        shape: of a log-probability, whose time can be estimated; None for others.
    """

    op: str
    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    shape: Shape | None = None

    def __str__(self):
        return f"{self.op}, {self.name}" + (f", {self.shape}" if self.shape else "")


def programs() -> list[Program]:
    """Every op's programs, in the order of the tables in kernels/README.md."""
    found = []
    for shape in SHAPES:
        N, D, V = shape
        arguments = (_like(N, D), _like(V, D), _like(N, dtype=jnp.int32))
        cotangents = (_like(N, dtype=jnp.float32),) * 3
        for name, function, more in (
            ("forward", token_logprob, ()),
            ("forward + backward", _logprob_and_grads, cotangents),
            ("naive forward", _naive_logprob, ()),
        ):
            found.append(Program("logprob", name, function, arguments + more, shape))
    return found + _attention_programs() + _advantage_programs()


def _like(*shape, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _logprob_and_grads(hidden_ND, weight_VD, target_N, *d_out):
    def call(hidden_ND, weight_VD):
        return tuple(token_logprob(hidden_ND, weight_VD, target_N))

    out, pull = jax.vjp(call, hidden_ND, weight_VD)
    return out, pull(d_out)


def _naive_logprob(hidden_ND, weight_VD, target_N):
    """What is to be beaten: all logits at once, in float32."""
    z_NV = jnp.einsum(
        "ND,VD->NV", hidden_ND, weight_VD, preferred_element_type=jnp.float32
    )
    logp_NV = jax.nn.log_softmax(z_NV)
    logp_N = jnp.take_along_axis(logp_NV, target_N[:, None], axis=1)[:, 0]
    return logp_N, -(jnp.exp(logp_NV) * logp_NV).sum(axis=1)


def _attention_programs() -> list[Program]:
    from .attention import packed_attention

    # 65,536 positions of 4 rows, 32 query heads over 8 key/value heads.
    B, T, H, K, C = 4, 16384, 32, 8, 128
    arguments = (
        _like(B, T, H, C),
        _like(B, T, K, C),
        _like(B, T, K, C),
        _like(B, T, dtype=jnp.int32),
    )
    call = functools.partial(packed_attention, scale=C**-0.5)

    def both(q_BTHC, k_BTKC, v_BTKC, segment_BT):
        def forward(q_BTHC, k_BTKC, v_BTKC):
            return call(q_BTHC, k_BTKC, v_BTKC, segment_BT)

        out, pull = jax.vjp(forward, q_BTHC, k_BTKC, v_BTKC)
        return out, pull(out)

    return [
        Program("attention", "forward", call, arguments),
        Program("attention", "forward + backward", both, arguments),
    ]


def _advantage_programs() -> list[Program]:
    from . import advantage

    # 65,536 packed tokens; as many samples in groups of 16.
    N, B, T = 65536, 16, 4096
    number, index = _like(B, T, dtype=jnp.float32), _like(B, T, dtype=jnp.int32)
    of_sample = (
        _like(N, dtype=jnp.float32),
        _like(N, dtype=jnp.int32),
        _like(N, dtype=jnp.bool_),
    )
    group = functools.partial(
        advantage.group_advantage,
        num_groups=N // 16,
        centre="group_mean",
        scale="group_std",
    )
    gae = functools.partial(advantage.gae, gamma=0.99, lam=0.95)
    returns = functools.partial(advantage.discounted_returns, gamma=0.99)
    return [
        Program("advantage", "group", group, of_sample),
        Program("advantage", "GAE", gae, (number, number, index, number)),
        Program("advantage", "returns", returns, (number, index, number)),
    ]


# In the process that compiles.


def environment(folder: pathlib.Path | str | None = None) -> dict[str, str]:
    """Environment variables under which libtpu compiles on a host without TPUs.

    Args:
        folder: for dumps of instruction bundles; None: no dumps.
    """
    dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may be compiling too
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    } | ({} if folder is None else {"LIBTPU_INIT_ARGS": dump})


def device_mesh(generation: str) -> jax.sharding.Mesh:
    """A mesh of one device of a TPU that is not there."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=TOPOLOGIES[generation]
    )
    return jax.sharding.Mesh(np.array(topology.devices[:1]), ("device",))


def compile_program(program: Program, generation: str) -> dict[str, Any]:
    """Compiles it for one device; returns what the compiler says, ready for JSON."""
    mesh = device_mesh(generation)
    place = jax.sharding.NamedSharding(mesh, jax.P())
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        program.arguments,
    )
    with jax.set_mesh(mesh):
        lowered = jax.jit(program.function).lower(*arguments)
        begun = time.perf_counter()
        compiled: Any = lowered.compile()
    text = compiled.as_text()
    others = re.findall(r'"estimated_cycles":"(\d+)"', text)
    return {
        "compile_secs": time.perf_counter() - begun,
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "kernels": {name: int(size) for name, size in _KERNEL.findall(text)},
        "other_cycles": sum(map(int, others)),
    }


# A kernel's name, and the VMEM that it takes; there may be line breaks between.
_KERNEL = re.compile(
    r"%(\w+?)(?:\.\d+)? = [^\n]*tpu_custom_call"
    r'.*?"used_scoped_memory_configs":\[\{"memory_space":"1"[^}]*"size":"(\d+)"',
    re.DOTALL,
)


def largest_vocab(generation: str, shape: Shape) -> int:
    """Words of the largest tile that the compiler accepts backward, in steps of 128."""
    from .logprob import tpu

    kind = _generation(generation)
    rule = grads_blocks(kind, shape.N, shape.V, (_width(shape),))
    vocab = rule.vocab
    vector = _like(shape.N, dtype=jnp.float32)
    index = _like(shape.N, dtype=jnp.int32)
    arguments = (_like(shape.N, shape.D), _like(shape.V, shape.D), index)

    def accepted(vocab):
        blocks = dataclasses.replace(rule, vocab=vocab)

        def function(hidden_ND, weight_VD, target_N, num_live, x_N):
            return tpu.grads(
                hidden_ND,
                Head(weight_VD),
                target_N,
                num_live,
                *(x_N, x_N, x_N, x_N, x_N),
                Logits(),
                blocks=blocks,
            )

        program = Program(
            "logprob",
            "backward",
            function,
            (*arguments, _like(dtype=jnp.int32), vector),
        )
        try:
            compile_program(program, generation)
        except jax.errors.JaxRuntimeError as error:
            if "vmem" not in str(error):
                raise
            return False
        return True

    while accepted(vocab + 128):
        vocab += 128
    return vocab


# In the process that asks.


def measure(request: str, generation: str) -> dict[str, Any]:
    """Has a request (a program's name, or "largest" and a shape) met by a process.

    Returns:
        what `_answer` gives, and under "loops" those of each log-probability kernel.

    Raises:
        RuntimeError: if the compiler, or the program, raises.
    """
    dumped = request.startswith("logprob") and "naive" not in request
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--child", request, generation],
            env=os.environ | environment(folder if dumped else None),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{request}, for {generation}: {done.stderr[-4000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        found["loops"] = read_kernels(pathlib.Path(folder), "logprob_")
    return found


class Estimate(NamedTuple):
    """Seconds of one kernel; all are lower bounds.

    Attributes:
        compute: bundles x trips over the clock.
        traffic: bytes over the bandwidth, beside the former.
        exposed: the first copies and the last, which nothing hides.
        bound: of the matmuls alone at the published peak.
    """

    name: str
    compute: float
    traffic: float
    exposed: float
    bound: float

    @property
    def total(self) -> float:
        return max(self.compute, self.traffic) + self.exposed


def estimates(found: dict[str, Any], generation: str, shape: Shape) -> list[Estimate]:
    """Of each log-probability kernel in what `measure` found, forward first."""
    kind, width = _generation(generation), _width(shape)
    forward = stats_blocks(kind, shape.N, shape.V, (width,))
    backward = grads_blocks(kind, shape.N, shape.V, (width,))
    tokens_bytes = shape.N * shape.D * width.hidden_bytes
    flops = 2 * shape.N * shape.D * shape.V
    # Of each kernel: bytes moved, those of its first and last copies, multiplications.
    kernels = {
        "logprob_stats": (
            stats_traffic(*shape, forward, width),
            _tile_bytes(forward, width),
            flops,
        ),
        "logprob_grads": (
            grads_traffic(*shape, backward, width),
            2 * _tile_bytes(backward, width),
            3 * flops,
        ),
        # Adds up two cores' sums: two arrays of each in, one out.
        "logprob_total": (5 * tokens_bytes, 0, 0),
    }
    tiles = -(-shape.N // backward.tokens)
    return [
        Estimate(
            name,
            found["loops"][name].cycles(rare=tiles) / CLOCKS[generation],
            traffic / kind.memory_bytes_per_sec,
            exposed / kind.memory_bytes_per_sec,
            multiplied / kind.matmul_flops,
        )
        for name, (traffic, exposed, multiplied) in kernels.items()
        if name in found["loops"]
    ]


def summed(parts: list[Estimate], other_secs: float) -> tuple[float, float]:
    """(seconds, seconds of the matmuls alone) of a program."""
    total = sum(part.total for part in parts) + other_secs
    return total, sum(part.bound for part in parts)


def _tile_bytes(blocks: Blocks, width: Width) -> int:
    """A tile of tokens and one of words, of each core."""
    tokens, words = blocks.tokens * width.hidden_bytes, blocks.vocab * width.head_bytes
    return blocks.cores * width.D * (tokens + words)


def _generation(name: str) -> Generation:
    return next(g for g in GENERATIONS.values() if g.name == name)


def _width(shape: Shape) -> Width:
    return Width(shape.D, 2, 2)


def report(program: Program, generation: str, found: dict[str, Any]) -> str:
    """One line of memory and time, and one of its blocks for a log-probability."""
    secs, mib = found["compile_secs"], found["temp_bytes"] / 2**20
    line = f"{generation:6} {program}: compiled in {secs:.1f} s, {mib:,.1f} MiB temp"
    for name, used in found["kernels"].items():
        line += f", {name} {used / 2**20:.1f} MiB of VMEM"
    if program.shape is None or not found["loops"]:
        return line
    parts = estimates(found, generation, program.shape)
    other = found["other_cycles"] / CLOCKS[generation]
    for part in parts:
        line += (
            f"\n       {part.name}: {part.compute * 1e3:.1f} ms of bundles, "
            f"{part.traffic * 1e3:.1f} ms of traffic, "
            f"{part.exposed * 1e3:.2f} ms exposed"
        )
    total, bound = summed(parts, other)
    return line + (
        f"\n       at least {total * 1e3:.1f} ms with {other * 1e3:.2f} ms around; "
        f"matmuls alone {bound * 1e3:.1f} ms: {total / bound:.3f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.kernels.estimate",
        description="Compiles the kernels for TPUs that are not there; no TPU needed.",
    )
    names = sorted({program.op for program in programs()})
    parser.add_argument("--op", default=",".join(names), help="default: %(default)s")
    parser.add_argument(
        "--generation", default=",".join(TOPOLOGIES), help="default: %(default)s"
    )
    parser.add_argument(
        "--largest",
        action="store_true",
        help="also find the largest tile of the vocabulary that fits VMEM, backward",
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_answer(*options.child)))
        return
    if importlib.util.find_spec("libtpu") is None:
        sys.exit("libtpu, the TPU compiler, is not installed: pip install libtpu")
    print(
        "Compiled only, nothing timed on a chip. Times are lower bounds: bundles x "
        "trips / clock, or memory traffic if longer, and copies that nothing hides."
    )
    for generation in options.generation.split(","):
        kind = _generation(generation)
        assumed = " (assumed)" if generation in ASSUMED else ""
        print(
            f"{generation:6} clock {CLOCKS[generation] / 1e9} GHz{assumed}, "
            f"{num_cores(kind)} core(s), {kind.vmem_bytes // 2**20} MiB of VMEM each, "
            f"limit {vmem_limit_bytes(kind) // 2**20}"
        )
        for program in programs():
            if program.op in options.op.split(","):
                found = measure(str(program), generation)
                print(report(program, generation, found), flush=True)
        for shape in SHAPES if "logprob" in options.op else ():
            print(_blocks_line(generation, shape, options.largest), flush=True)


def _blocks_line(generation, shape, largest):
    kind, widths = _generation(generation), (_width(shape),)
    forward = stats_blocks(kind, shape.N, shape.V, widths)
    backward = grads_blocks(kind, shape.N, shape.V, widths)
    mib = grads_bytes(backward.tokens, backward.vocab, widths) / 2**20
    line = (
        f"{generation:6} {shape}: tokens x words {forward.tokens} x {forward.vocab} "
        f"forward, {backward.tokens} x {backward.vocab} backward ({mib:.0f} MiB)"
    )
    if largest:
        found = measure(f"largest {SHAPES.index(shape)}", generation)["vocab"]
        line += f"; at {backward.tokens} tokens the compiler takes up to {found} words"
    return line


def _answer(request, generation):
    if request.startswith("largest "):
        return {"vocab": largest_vocab(generation, SHAPES[int(request.split()[1])])}
    program = next(p for p in programs() if str(p) == request)
    return compile_program(program, generation)


if __name__ == "__main__":
    main()
