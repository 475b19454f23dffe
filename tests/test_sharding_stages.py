"""Stages that learn from pairs, rankings and teachers: many devices are as one.

What is the same of SFT and RL, and of samples, is in test_sharding.py.

Legend: N pairs that rows can hold, P prompts, K replies to each.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from sharded_steps import (
    MESHES,
    MODEL,
    ONE_DEVICE,
    UNTIED,
    B,
    Sizes,
    Step,
    T,
    V,
    assert_laid_out,
    assert_same_step,
    assert_weights_laid_out,
    mesh_of,
    name_of,
    random_rows,
    step,
    updater,
    wrongly_whole,
)

from rl_jax import reward_learner
from rl_jax.data.packing import Piece
from rl_jax.data.pair_packing import num_places, pack_pairs
from rl_jax.data.rankings import Judged
from rl_jax.data.reply_rows import pack_groups
from rl_jax.distill_learner import Distiller, Soft, make_distiller
from rl_jax.learner import to_device
from rl_jax.mesh import spec
from rl_jax.models import reward_head
from rl_jax.models.params import layout, num_params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives import distillation, preference
from rl_jax.preference_learner import PairArrays, make_preference_learner
from tiny_stage import random_leaf, random_params

TEACHER = ModelSpec(
    num_layers=1,
    width=24,
    num_heads=8,
    num_kv_heads=8,
    head_dim=4,
    ffn_width=16,
    vocab_size=V,
)
SAMPLING = 0.7  # temperature


# Pairs.


PAIR_LENGTHS = [(6, 9), (12, 4), (5, 5), (11, 7), (8, 3), (3, 11), (9, 10)]
SPECIAL = (0, 5, 10, 15, 20, 25, 30)
PREFERENCE = preference.PRESETS["llama3"]  # its loss has each of the terms there are


def preference_step(sizes: Sizes) -> Step:
    mesh, N = mesh_of(sizes), num_places(B, T)
    rng = np.random.default_rng(2)
    pairs = []
    for both in PAIR_LENGTHS:
        prompt = rng.integers(0, V, 2)
        drawn = ([*prompt, *rng.integers(0, V, n - 2)] for n in both)
        pieces = (Piece(np.array(x, np.int32), np.arange(len(x)) >= 2) for x in drawn)
        pairs.append(tuple(pieces))
    [rows] = pack_pairs(pairs, B, T)
    # From here on in the order of the rows.
    replies = [[p.tokens[p.mask] for p in pairs[i]] for i in rows.index]
    is_special = [[np.isin(x, SPECIAL) for x in both] for both in replies]
    tokens_N2, weight_N, special_N = np.ones((N, 2)), np.zeros(N), np.zeros(N)
    tokens_N2[: len(pairs)] = [[(~x).sum() for x in both] for both in is_special]
    special_N[: len(pairs)] = [x.sum() for x, _ in is_special]
    weight_N[: len(pairs)] = 1 / len(pairs)
    learner = make_preference_learner(
        UNTIED, loss=PREFERENCE, num_pairs=N, special_ids=SPECIAL
    )
    with jax.set_mesh(mesh):
        batch = to_device(rows.packed, mesh)
        # The rewards of some references have nearly the same mean for chosen and for
        # rejected replies, and their small difference all of the rounding.
        reference = random_params(mesh, 6, UNTIED)
        logp_N3 = learner.score_totals(reference, batch)
        known = [np.asarray(logp_N3)[:, :2], tokens_N2, weight_N, special_N]
        known = PairArrays(*(x.astype(np.float32) for x in known))
        return step(
            mesh,
            random_params(mesh, 0, UNTIED),
            updater(UNTIED),
            lambda params, grads: learner.preference_gradient(
                params, grads, batch, known
            ),
            logps=logp_N3,
            held=(batch, reference),
        )


# Rankings.


def reward_step(sizes: Sizes, form: reward_learner.Form = "ranking") -> Step:
    mesh, P, K = mesh_of(sizes), 8, 3
    rng = np.random.default_rng(3)
    ranks = [(0, 1), (1, 0, 2), (0, 1), (0, 0, 1), (1, 0), (2, 1, 0)]
    judged, groups = [], []
    for i, rank in enumerate(ranks):
        margin = ((0.0, 0.7), (0.0, 0.0)) if rank == (0, 1) else ()
        no_text = ((),) * len(rank)
        label = 1.0 if i % 2 else 0.25  # of the first; read where that is the form
        judged.append(Judged((), no_text, rank, margin, label, "", i, None, {}))
        lengths = rng.integers(3, T, len(rank))
        groups.append([rng.integers(0, V, n).astype(np.int32) for n in lengths])
    [packed] = pack_groups(groups, B, T, P)
    said = reward_learner.said_of(packed, judged, 1 / len(groups), P, K)
    learner = reward_learner.make_reward_learner(MODEL, form=form)
    with jax.set_mesh(mesh):
        rows = reward_learner.to_device(packed, mesh)
        leaf = functools.partial(random_leaf, np.random.default_rng(0), mesh)
        params = reward_head.map_layout(leaf, MODEL)
        return step(
            mesh,
            params,
            updater(MODEL, reward=True),
            lambda params, grads: learner.gradient(params, grads, rows, said),
            logps=learner.score(params, rows),
            held=(rows, ()),
        )


# Teachers.


@functools.cache
def distiller(soft: Soft) -> Distiller:
    opd = distillation.PRESETS["opd"]
    centred = dataclasses.replace(opd.loss, centre="group_mean")
    tx, _ = updater(UNTIED)
    return make_distiller(
        *(UNTIED, TEACHER, tx, lambda step: step),
        soft=soft,
        on_policy=dataclasses.replace(opd, outcome=0.5, loss=centred),
        num_groups=8,
        temperature=SAMPLING,
    )


WHOLE, FEW = Soft(2.0, "reverse"), Soft(2.0, "forward", 5, "bucket")


def distill_step(sizes: Sizes, soft: Soft | None = None) -> Step:
    """A soft step, or one on drawn tokens."""
    mesh, (packed, outcome) = mesh_of(sizes), random_rows()
    num_tokens = int(packed.mask_BT.sum())
    programs = distiller(soft or WHOLE)
    with jax.set_mesh(mesh):
        teacher = random_params(mesh, 1, TEACHER)
        batch = to_device(packed, mesh)
        teacher_BT = distiller(WHOLE).teacher_score(teacher, batch)
        if soft is None:
            batch = dataclasses.replace(batch, ref_logp_BT=teacher_BT)

        def gradient(params, grads):
            if soft is None:
                return programs.on_policy_gradient(
                    params, grads, batch, outcome, num_tokens
                )
            return programs.soft_gradient(
                params, grads, teacher, batch, outcome.weight_N, num_tokens
            )

        return step(
            mesh,
            random_params(mesh, 0, UNTIED),
            # Whose programs for an update are the distiller's own.
            updater(UNTIED),
            gradient,
            logps=teacher_BT,
            held=(batch, teacher),
        )


STAGES: dict[str, Callable[[Sizes], Step]] = {
    "dpo": preference_step,
    "rm": reward_step,
    "distill soft": functools.partial(distill_step, soft=WHOLE),
    "distill on policy": distill_step,
    "rm on labels": functools.partial(reward_step, form="pointwise"),
    "distill soft top-k": functools.partial(distill_step, soft=FEW),
}
SLOW = ("rm on labels", "distill soft top-k")


@functools.cache
def run(stage: str, sizes: Sizes) -> Step:
    return STAGES[stage](sizes)


def leaves_of(stage: str) -> Any:
    return reward_head.layout(MODEL) if "rm" in stage else layout(UNTIED)


@pytest.fixture(params=MESHES, ids=name_of)
def sizes(request):
    return request.param


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in STAGES
    ]
)
def stage(request):
    return request.param


def test_a_step_is_that_of_one_device(stage, sizes):
    # No difference of scores sees the bias of a reward model; a label does.
    unseen = (".bias",) if stage == "rm" else ()
    one, many = run(stage, ONE_DEVICE), run(stage, sizes)
    assert_same_step(stage, many, one, unseen=unseen)


def test_weights_gradients_and_moments_are_laid_out_as_the_table_says(stage, sizes):
    found = run(stage, sizes)
    assert_weights_laid_out(found, leaves_of(stage))
    batch, _ = found.held
    for x in jax.tree.leaves(batch):
        assert_laid_out(x, spec("batch", "time"))


@pytest.mark.parametrize("asked", ["dpo", "rm"])
def test_what_is_said_of_replies_is_whole_on_every_device(asked, sizes):
    assert run(asked, sizes).logps.is_fully_replicated


def test_nothing_large_is_replicated_unless_the_table_says_so(stage, sizes):
    found = run(stage, sizes)
    held = (found.state, found.before, found.grads, found.held)
    # Of a teacher too, which is the smallest.
    least = min(map(num_params, (MODEL, UNTIED, TEACHER)))
    assert wrongly_whole(held, found.mesh, least) == []


def test_what_is_replicated_is_found_in_every_kind_of_tree(stage):
    """The test above can fail."""
    found = run(stage, (2, 2, 2))
    held = (found.state, found.grads, found.held)
    whole = jax.device_put(held, jax.NamedSharding(found.mesh, jax.P()))
    wrong = wrongly_whole(whole, found.mesh, num_params(MODEL))
    # Weights, two moments, gradients, and those of a reference or a teacher.
    trees = 4 if "rm" in stage else 5
    assert sum(name.endswith("w_up_LDF") for name in wrong) == trees
    assert sum(name.endswith("token_BT") for name in wrong) == 1
