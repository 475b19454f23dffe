"""What a save costs, measured as a user measures it."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from rl_jax import bench_checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_the_state_has_the_size_asked_for_and_every_leaf_changes_in_a_step():
    before = bench_checkpoint.new_state(26)
    sizes = [x.nbytes for x in jax.tree.leaves(before)]
    assert sum(sizes) == 6 * 4 * 1024**2
    kept = [np.asarray(x).copy() for x in jax.tree.leaves(before)]
    after = bench_checkpoint._step(before, 1)
    for x, y in zip(jax.tree.leaves(after), kept, strict=True):
        assert np.isfinite(x).all() and not np.array_equal(x, y)


@pytest.mark.slow
def test_saving_is_in_the_background_and_fifty_saves_leave_memory_as_it_was(tmp_path):
    file = tmp_path / "figures.json"
    words = ["checkpoint", "--megabytes=64", f"--json={file}", f"--folder={tmp_path}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.bench", *words],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    found = {f["name"].strip(): f["value"] for f in json.loads(file.read_text())}
    assert found["of which save() takes"] < 0.5
    assert found["growth"] < 2.0  # per cent
    assert os.listdir(tmp_path) == ["figures.json"]
