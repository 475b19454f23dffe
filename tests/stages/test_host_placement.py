"""Stages whose optimiser, reference or teacher stays on the hosts: the same stages.

The programs that score are the same ones, so that equal to the bit means just that.
The optimiser's is another one: how the CPU compiler contracts what it is made of is in
tests/test_host_moments.py.
"""

import contextlib
import gc
import pathlib
import weakref
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import tiny_distill

import tiny_stage as tiny
from rl_jax import placement
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.placement import HOST
from rl_jax.stages import context as contexts
from rl_jax.stages import on_policy, rl, run_state, sft
from rl_jax.stages.context import StopFlag

MESHES = {"one": (1, 1, 1), "eight": (4, 2, 1)}
SFT = {
    "model__num_layers": 2,
    "sft__eval__every": 0,
    "sft__checkpoint__every": 0,
    "sft__optim__lr": 0.01,
    # A run of fewer steps is then the beginning of a longer one.
    "sft__optim__schedule": "constant",
    "sft__batch__micro_rows": 8,
    "sft__batch__rows_per_step": 8,
    "sft__rollout__prefill_rows": 8,
    "rl__batch__micro_rows": 8,
    "rl__rollout__prefill_rows": 8,
}
RL = {
    "rl__steps": 3,
    "rl__eval__every": 0,
    "rl__checkpoint__every": 0,
    "rl__log__samples_every": 0,
    "rl__optim__lr": 0.01,
    "rl__optim__warmup_steps": 0,
    "rl__objective__kl_coef": 0.1,
}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with tiny.compilation_cache(tmp_path_factory.mktemp("programs")):
        yield


@contextlib.contextmanager
def built(folder, mesh="one", **changes):
    sizes = MESHES[mesh]
    made = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    with mock.patch.object(contexts, "make_mesh", lambda *_, **__: made):
        context = contexts.build(tiny.run_config(**changes), folder, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


@contextlib.contextmanager
def watched(part):
    """The memory kinds of a part of the state, whenever a step begins."""
    seen, begin = [], run_state.Session.begin

    def look(self, step, state, position):
        leaves = [x for x in jax.tree.leaves(getattr(state, part)) if x.ndim]
        seen.append({x.sharding.memory_kind for x in leaves})
        begin(self, step, state, position)

    with mock.patch.object(run_state.Session, "begin", look):
        yield seen


@contextlib.contextmanager
def copies(stage):
    """Copies on the devices that are still there when optimiser steps are taken."""
    made, alive, to_device = [], [], placement.to_device
    take = stage.take_steps

    def spy(tree):
        found = to_device(tree)
        if tree is not None and found is not tree:
            made.extend(map(weakref.ref, jax.tree.leaves(found)))
        return found

    def taken(*args):
        gc.collect()
        alive.append(sum(ref() is not None for ref in made))
        return take(*args)

    with (
        mock.patch.object(placement, "to_device", spy),
        mock.patch.object(stage, "take_steps", taken),
    ):
        yield made, alive


def fetched(tree):
    return jax.tree.map(np.array, tree)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# The optimiser.


def fine_tuned(folder, mesh, steps, **changes):
    with built(folder, mesh, sft__steps=steps, **SFT | changes) as context:
        stage = context.run.stages[0]
        with watched("opt_state") as seen:
            params = sft.run(context, stage, lambda: contexts.first_params(context))
        return fetched(params), seen


@pytest.mark.parametrize("mesh", ["eight", pytest.param("one", marks=pytest.mark.slow)])
def test_moments_on_the_hosts_give_the_same_weights_and_resume_to_the_bit(
    tmp_path, mesh
):
    host = {"sft__optim__host": True}
    here, kinds = fine_tuned(tmp_path / "here", mesh, 4)
    assert kinds == [{"device"}] * 5
    there, kinds = fine_tuned(tmp_path / "there", mesh, 4, **host)
    assert kinds == [{HOST}] * 5
    # One rounding: see tests/test_host_moments.py.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 0, 1e-6), there, here)
    fine_tuned(tmp_path / "cut", mesh, 2, **host)
    cut, kinds = fine_tuned(tmp_path / "cut", mesh, 4, **host)
    assert kinds == [{HOST}] * 3  # what is restored is there too
    assert_same(cut, there)


@pytest.mark.slow
def test_a_run_may_move_its_moments_when_it_is_resumed(tmp_path):
    whole, _ = fine_tuned(tmp_path / "whole", "one", 4)
    fine_tuned(tmp_path / "moved", "one", 2)
    moved, kinds = fine_tuned(tmp_path / "moved", "one", 4, sft__optim__host=True)
    assert kinds == [{HOST}] * 3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 0, 1e-6), moved, whole)


# The reference.


def reinforced(folder: pathlib.Path, mesh: str = "one", **changes: Any):
    with built(folder, mesh, **SFT | RL | changes) as context:
        stage = context.run.stages[1]
        params = rl.run(context, stage, lambda: contexts.first_params(context))
        return fetched(params)


@pytest.mark.parametrize("mesh", ["eight", pytest.param("one", marks=pytest.mark.slow)])
def test_a_reference_on_the_hosts_gives_the_same_policy_to_the_bit(tmp_path, mesh):
    here = reinforced(tmp_path / "here", mesh)
    with copies(rl) as (made, alive):
        there = reinforced(tmp_path / "there", mesh, rl__objective__reference_host=True)
    assert_same(there, here)
    # One copy a step, gone when the gradients come.
    assert len(made) == RL["rl__steps"] * len(jax.tree.leaves(there))
    assert alive == [0] * RL["rl__steps"]


@pytest.mark.slow
def test_a_moving_reference_stays_on_the_hosts_and_is_restored_there(tmp_path):
    moving: dict[str, Any] = {"rl__objective__reference_every": 2}
    host: dict[str, Any] = moving | {"rl__objective__reference_host": True}
    here = reinforced(tmp_path / "here", **moving)
    with watched("reference") as seen:
        there = reinforced(tmp_path / "there", **host)
        cut_short: dict[str, Any] = host | {"rl__steps": 2}
        reinforced(tmp_path / "cut", **cut_short)
        cut = reinforced(tmp_path / "cut", **host)
    assert set(map(tuple, seen)) == {(HOST,)}
    assert_same(there, here)
    assert_same(cut, there)


# The teacher.


@pytest.mark.slow
@pytest.mark.parametrize("form", ["soft", "opd"])
def test_a_teacher_on_the_hosts_teaches_the_same_to_the_bit(tmp_path, form):
    changes = {"distill__form": form, "steps": 2, "eval__every": 1}
    changes |= {"data__eval": "arithmetic", "eval__num_prompts": 2}
    found = []
    for host in (False, True):
        folder = tmp_path / str(host)
        with tiny_distill.built(
            folder, distill__teacher_host=host, **changes
        ) as context:
            tiny_distill.teach(context)
            params = fetched(tiny_distill.run(context))
            found.append((params, tiny_distill.lines(folder)))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert any("eval/kl" in line for line in found[1][1])


@pytest.mark.parametrize("host", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_teacher_is_on_the_devices_only_while_it_reads(tmp_path, host):
    changes = {"steps": 2, "distill__teacher_host": host}
    with tiny_distill.built(tmp_path, **changes) as context:
        tiny_distill.teach(context)
        with copies(on_policy) as (made, alive):
            tiny_distill.run(context)
    assert bool(made) == host and alive == [0, 0]


# What cannot be.


def test_machines_without_such_memory_are_told_before_anything_is_compiled(tmp_path):
    keys = ("sft.optim.host", "rl.objective.reference_host")
    with mock.patch.object(placement, "memory_kinds", lambda device: ["device"]):
        for key in keys:
            changes = {key.replace(".", "__"): True, "rl__objective__kl_coef": 0.1}
            with pytest.raises(ConfigError, match=f"--config.{key}=") as caught:
                with built(tmp_path / "run", **SFT | changes):
                    pass
            assert len(str(caught.value).splitlines()) <= 3
        with pytest.raises(ConfigError, match="--config.distill.distill.teacher_host="):
            with tiny_distill.built(tmp_path / "run", distill__teacher_host=True):
                pass
    assert not (tmp_path / "run").exists()


def test_a_reference_that_there_is_none_of_cannot_be_anywhere():
    with pytest.raises(ConfigError, match="there is no reference"):
        tiny.rl_stage(objective__reference_host=True, objective__kl_coef=0.0)
