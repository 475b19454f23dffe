"""Cycles read from a compiler's dump; traffic walked by hand; the limits themselves."""

import importlib.util

import pytest

from rl_jax.kernels import estimate  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.bundles import Loop, kernels, parse  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob.blocks import (  # pyright: ignore[reportMissingImports]
    VMEM_SHARE,
    Blocks,
    Width,
    grads_blocks,
    grads_bytes,
    grads_traffic,
    stats_blocks,
    stats_bytes,
    stats_traffic,
)
from rl_jax.kernels.platform import GENERATIONS, KernelError  # pyright: ignore[reportMissingImports]

# Of a dump of libtpu 0.0.42, shortened: a grid of 4 steps, in it a loop of 2 trips with
# a matmul and one of 8 / 4 without; descriptions of copies run over several lines.
EXCERPT = """\
= control target key start
LB: loop body
PF: predicated region fallthrough
= control target key end

     0   :  { %s1_s0 = inlined_call_operand.hbm [shape: bf16[1000,256]] }
   0x1   :  { %7 = vsyncpa [#allocation3], 0 } /* Start region 1 */
   0x2 LB: > { %s9_s2 = sadd.s32 1, %s12_s3  ;;  %s12_s3 = sphi %s6_s3, %s9_s2 }
   0x3   : > { %420 = sbr.rel (%p21_p10) target bundleno = 28 (0x1c), region = 36 }
   0x4   : > { %42 = dma.hbm_to_vmem [thread:$0]  (!%p11734), /*hbm=*/%s168 /* copy
base_bounds: (512, 8)
hlo: logprob_test.1
 */ }
   0x5 LB: >> { %s30_s5 = sadd.s32 1, %s31_s6  ;;  %s31_s6 = sphi %s29_s6, %s30_s5 }
   0x6   : >> { %8441 = vmatmul.bf16.gmra.mxu0 %v1_v2  ;;  %8442 = vmatmul.bf16.gmra.mxu1 %v1_v2 }
   0x7   :  {}
   0x8   : >> { %p88_p9 = scmp.ge.s32.totalorder %s30_s5, 2 /* loop exit test */ }
   0x9   : >> { %8391 = sbr.rel (!%p88_p9) target bundleno = 5 (0x5), region = 338 }
   0xa   :  {}
   0xb   :  {}
   0xc   :  {}
   0xd   :  {}
   0xe   : >> { %8396 = vst [vmem:[%s21294_s15] sm:$0xff] %v8395_v6 }
   0xf PF: > { %p16_p1 = scmp.eq.s32.totalorder %s21_s28, 1 }
  0x10 LB: >> { %s40_s7 = sadd.s32 4, %s41_s8  ;;  %s41_s8 = sphi %s39_s8, %s40_s7 }
  0x11   : >> { %p99_p2 = scmp.ge.s32.totalorder %s40_s7, 8 }
  0x12   : >> { %8400 = sbr.rel (!%p99_p2) target bundleno = 16 (0x10), region = 382 }
  0x13   :  {}
  0x14   :  {}
  0x15   :  {}
  0x16   :  {}
  0x17   :  {}
  0x18   : > { %20 = sbr.rel (!%p15_p0) target bundleno = 2 (0x2), region = 86  ;;  %p15_p0 = scmp.ge.s32.totalorder %s9_s2, 4 /* loop exit test */ }
  0x19   :  {}
  0x1a   :  {}
  0x1b   :  {}
  0x1c PF: > { %s22_s2 = smov %s9_s2 }
  0x1d   :  {}
  0x1e   :  { %9004 = vsyncpa [#allocation3 + $0x1], 1 } /* End region 1 */
"""  # noqa: E501


def test_bundles_are_counted_in_the_innermost_loop_that_holds_them():
    kernel = parse(EXCERPT)
    (grid,) = kernel.inner
    multiply, clear = grid.inner
    assert (kernel.trips, kernel.bundles) == (1, 3)
    assert (grid.trips, grid.bundles, grid.matmuls) == (4, 10, 0)
    assert (multiply.trips, multiply.bundles, multiply.matmuls) == (2, 10, 2)
    assert (clear.trips, clear.bundles, clear.matmuls) == (2, 8, 0)
    assert grid.multiplies
    assert not clear.multiplies


def test_cycles_are_bundles_times_trips():
    kernel = parse(EXCERPT)
    assert kernel.cycles() == 3 + 4 * (10 + 2 * 10 + 2 * 8)
    assert kernel.cycles(rare=8) == 3 + 4 * (10 + 2 * 10 + 2 * 8 / 8)


def test_a_loop_that_no_constant_ends_is_an_error():
    with pytest.raises(ValueError, match="no constant ends the loop whose test is p99"):
        parse(EXCERPT.replace("scmp.ge.s32.totalorder %s40_s7, 8", "scmp.ge %s40, %s1"))


def test_kernels_are_found_by_the_names_of_their_dumps(tmp_path):
    for name in (
        "1796-logprob_stats.1-65-packed-bundles-post-ra.txt",
        "1796-logprob_stats.1-64-schedule-analysis_packed-bundles-post-ra.txt",
        "1796-logprob_grads-65-packed-bundles-post-ra.txt",
        "1796-fusion.3-65-packed-bundles-post-ra.txt",
    ):
        (tmp_path / name).write_text(EXCERPT if "schedule" not in name else "")
    found = kernels(tmp_path, "logprob_")
    assert sorted(found) == ["logprob_grads", "logprob_stats"]
    assert found["logprob_stats"] == parse(EXCERPT)


# Traffic, by walking the grids: a block is copied when its index changes.


def _copied(indices, block_bytes):
    return sum(block_bytes for old, new in zip([None, *indices], indices) if new != old)


def test_forward_traffic_is_that_of_the_blocks():
    N, D, V, width = 1024, 256, 2048, Width(256, 2, 4)
    blocks = Blocks(tokens=256, vocab=512)
    steps = [(t, v) for t in range(4) for v in range(4)]
    hidden = _copied([t for t, _ in steps], 256 * D * 2)
    head = _copied([v for _, v in steps], 512 * D * 4)
    assert stats_traffic(N, D, V, blocks, width) == hidden + head


@pytest.mark.parametrize("cores", [1, 2])
def test_backward_traffic_is_that_of_the_blocks_and_the_sums(cores):
    N, D, V, width = 1024, 256, 2048, Width(256, 2, 4)
    blocks = Blocks(tokens=256, vocab=512, cores=cores)
    total = 0
    for core in range(cores):
        tiles = range(core * 4 // cores, (core + 1) * 4 // cores)
        steps = [(v, t) for v in tiles for t in range(4)]
        total += _copied([t for _, t in steps], 256 * D * 2)  # hidden
        total += 2 * _copied([v for v, _ in steps], 512 * D * 4)  # head, d_weight
        for v, _ in steps:
            total += 256 * D * 4 * (1 if v == tiles[0] else 2)  # sums of d_hidden
    assert grads_traffic(N, D, V, blocks, width) == total


# The rule.

WIDTHS = [
    (Width(576, 2, 2),),
    (Width(2048, 2, 2),),
    (Width(4096, 2, 2),),
    (Width(4096, 2, 4),),
    (Width(8192, 4, 4),),
    (Width(4096, 2, 2), Width(8192, 2, 2)),
]


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda g: g.name)
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda ws: str([w.D for w in ws]))
def test_blocks_fit_and_are_of_128(generation, widths):
    for rule, num_bytes in ((stats_blocks, stats_bytes), (grads_blocks, grads_bytes)):
        for N, V in ((8192, 151936), (1, 1), (300, 1000)):
            blocks = rule(generation, N, V, widths)
            assert blocks.tokens % 128 == blocks.vocab % 128 == 0
            assert blocks.rows % 128 == blocks.columns % 128 == 0
            assert 0 < blocks.tokens < N + 128
            assert 0 < blocks.rows <= blocks.vocab < V + 128
            size = num_bytes(blocks.tokens, blocks.vocab, widths)
            assert size <= VMEM_SHARE * generation.vmem_bytes


def test_a_width_too_large_for_vmem_is_an_error_that_names_the_rule():
    generation = GENERATIONS["TPU v5"]
    with pytest.raises(KernelError, match="must fit the 64 MiB of VMEM of a v5p core"):
        grads_blocks(generation, 8192, 151936, (Width(65536, 2, 2),))


def _found(stats_cycles, grads_cycles):
    loops = {
        "logprob_stats": Loop(0, 0, 1, bundles=stats_cycles),
        "logprob_grads": Loop(0, 0, 1, bundles=grads_cycles),
    }
    return {"loops": loops}


def test_an_estimate_is_the_longer_of_cycles_and_traffic():
    shape = estimate.SHAPES[0]
    forward, backward = estimate.estimates(_found(90e6, 3e6), "v5e", shape)
    assert forward.compute == pytest.approx(90e6 / 1.5e9)
    assert forward.total == forward.compute + forward.exposed
    assert backward.compute < backward.traffic
    assert backward.total == backward.traffic + backward.exposed
    assert forward.bound == pytest.approx(0.0518, rel=1e-2)
    total, bound = estimate.summed([forward, backward], 1e-3)
    assert total == forward.total + backward.total + 1e-3
    assert bound == pytest.approx(4 * forward.bound)


# The limits, on what is compiled.


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["v5e", "v5p"])
@pytest.mark.parametrize("shape", estimate.SHAPES, ids=str)
def test_matmuls_take_most_of_the_time(generation, shape):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    found = estimate.measure(f"logprob, forward + backward, {shape}", generation)
    parts = estimate.estimates(found, generation, shape)
    names = ["logprob_stats", "logprob_grads", "logprob_total"]
    assert [part.name for part in parts] == names[: 3 if generation == "v5p" else 2]
    assert parts[0].total <= 1.25 * parts[0].bound
    other_secs = found["other_cycles"] / estimate.CLOCKS[generation]
    total, bound = estimate.summed(parts, other_secs)
    assert total <= 1.3 * bound
