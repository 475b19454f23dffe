"""The GPU's benchmark runs, here on tiny sizes and in the interpreter."""

from rl_jax import bench_gpu


def test_every_kernel_is_compared_with_its_plain_form():
    found = bench_gpu.figures(
        1, shapes=((16, 8, 40),), rows=(1, 70), implementation="gpu_interpret"
    )
    names = [figure.name for figure in found]
    assert names.count("  plain form / it") == 4
    assert [name for name in names if not name.startswith("  ")] == [
        "bf16 N=16 D=8 V=40, forward",
        "bf16 N=16 D=8 V=40, with gradients",
        "GAE, 1 x 70 tokens",
        "group advantages, 70 samples",
    ]
    assert all(figure.value > 0 for figure in found)
