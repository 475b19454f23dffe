"""The benchmark of kernels: the forms it compares agree, and it counts as it says."""

import functools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import bench, bench_kernels
from rl_jax.bench_kernels import Call, Sizes
from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    packed_attention,
)
from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    token_logprob,
)

SMALL = Sizes(N=48, D=8, V=160, T=32, H=4, K=2, C=8, B=2)


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def test_the_naive_forms_give_what_the_kernels_give():
    hidden_ND, weight_VD = drawn((6, 4), (20, 4))
    target_N = jnp.arange(6)
    naive = bench_kernels.naive_logprob(hidden_ND, weight_VD, target_N)
    ours = token_logprob(hidden_ND, weight_VD, target_N)
    for x, y in zip(naive, ours[:2], strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
    segment_BT = jnp.asarray([[1] * 5 + [2] * 4, [1] * 9])
    q_BTHC, k_BTKC, v_BTKC = drawn((2, 9, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8))
    arguments = (q_BTHC, k_BTKC, v_BTKC, segment_BT)
    naive = bench_kernels.naive_attention(*arguments, scale=0.3)
    ours = packed_attention(*arguments, scale=0.3)
    np.testing.assert_allclose(naive, ours, rtol=0, atol=1e-5)


def test_the_ratio_is_of_medians_within_rounds(monkeypatch):
    now, log = [0.0], []

    def takes(name, secs):
        def program():
            log.append(name)
            now[0] += secs[(len(log) - 1) // 3]

        return Call(program, ())

    monkeypatch.setattr(bench_kernels.time, "perf_counter", lambda: now[0])
    # A machine that is slow in one round of three, for both.
    bound, call = takes("bound", [9.0, 3.0, 30.0, 3.0]), takes("call", [1.0, 1, 10, 1])
    secs, speed = bench_kernels.compared(3, [call, call], [bound])
    assert log == ["call", "call", "bound", *["bound", "call", "call"] * 3]
    assert (secs, speed) == (2.0, 1.5)


def test_gradients_are_of_every_result():
    def both(x, y):
        return x * y, y * 2

    value, (d_x, d_y) = bench_kernels.gradients_of(both, 2)(*drawn((3,), (3,)))
    assert value.shape == () and d_x.any() and d_y.any()


def test_memory_is_what_the_naive_form_has_times_what_ours_has():
    x = jnp.ones((512, 512))
    few, many = (
        bench_kernels.compiled(
            lambda x, n=n: sum(jnp.sort(x * i, axis=0).sum() for i in range(1, n)), x
        )
        for n in (2, 5)
    )
    assert bench_kernels.saved(few, few) == 1
    assert bench_kernels.saved(many, few) >= 1 >= bench_kernels.saved(few, many)


def test_every_figure_is_measured_and_those_of_the_issue_have_targets(monkeypatch):
    monkeypatch.setattr(bench_kernels, "REPEATS", 1)
    figures = bench_kernels.figures(1, SMALL)
    assert all(math.isfinite(f.value) and f.value > 0 for f in figures)
    targets = [(f.name.strip(), f.target) for f in figures if f.target]
    assert [target for _, target in targets] == [0.95, 0.8, 20, 20, 1, 10, 1, 10]
    assert {"GAE", "discounted returns", "group advantages"} <= {
        f.name.partition(",")[0] for f in figures
    }


@pytest.mark.slow
def test_the_command_prints_one_table_and_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        bench_kernels, "figures", functools.partial(bench_kernels.figures, sizes=SMALL)
    )
    file = tmp_path / "figures.json"
    assert bench.main(["kernels", "--rounds=1", f"--json={file}"]) == 0
    names = [f["name"] for f in json.loads(file.read_text())]
    out = capsys.readouterr().out
    assert names and all(name in out for name in names)
