"""What the stages of a run share, and the mistakes that show only on the devices."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.data import arithmetic
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.models import export
from rl_jax.models.spec import Attention, RopeScaling
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Preempted, StopFlag

# Divides over the eight devices of the tests.
EIGHT = {
    f"{stage}__{key}": 8
    for stage in ("sft", "rl")
    for key in ("batch__micro_rows", "rollout__prefill_rows", "rollout__slots")
} | {"sft__batch__rows_per_step": 8}


def faults(folder, **changes):
    with pytest.raises(ConfigError) as error:
        contexts.build(tiny.run_config(**changes), folder, StopFlag())
    message = str(error.value)
    assert len(message.splitlines()) <= 3, message
    assert not folder.exists()  # told before the first file is written
    return message


# Layout.


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rl__batch__micro_rows": 6}, "config.rl.batch.micro_rows=6"),
        ({"sft__rollout__slots": 12}, "config.sft.rollout.slots=12"),
        ({"rl__rollout__prefill_rows": 4}, "config.rl.rollout.prefill_rows=4"),
        ({"model__width": 36, "model__head_dim": 8}, "width=36"),
    ],
)
def test_a_size_that_does_not_divide_over_the_devices_is_told(tmp_path, change, told):
    message = faults(tmp_path / "run", **EIGHT | change)
    assert told in message and "8" in message and "--config." in message


def test_heads_that_do_not_divide_over_the_tensor_axis_are_told(tmp_path):
    # The config's own checks know nothing of a model that comes from a folder.
    source = tmp_path / "model"
    mesh = tiny.one_device()
    params = tiny.random_params(mesh, 0)
    export.save_params(params, tiny.MODEL, source)
    changes = {"model__path": source, "mesh__tensor": 2, "mesh__fsdp": 4}
    message = faults(tmp_path / "run", **EIGHT, **changes)
    assert "num_kv_heads=1" in message and "--config.mesh.tensor=1" in message
    # Nor of the meshes that are samplers' own.
    changes = {"model__path": source, "mesh__replica": 2, "rl__rollout__tensor": 2}
    message = faults(tmp_path / "run", **EIGHT, **changes)
    assert "num_kv_heads=1" in message and "--config.rl.rollout.tensor=1" in message


def test_slots_are_laid_on_the_mesh_of_the_sampler(tmp_path):
    few = {"rl__rollout__slots": 4, "rl__rollout__prefill_rows": 4}
    few = EIGHT | few | {"model__num_kv_heads": 2}
    assert "config.rl.rollout.slots=4" in faults(tmp_path / "run", **few)
    few["rl__rollout__tensor"] = 2
    contexts.build(tiny.run_config(**few), tmp_path / "run", StopFlag())


def test_a_mesh_of_another_number_of_devices_is_told(tmp_path):
    message = faults(tmp_path / "run", **EIGHT, mesh__fsdp=4)
    assert "process group has 8" in message and "--config.mesh.fsdp=-1" in message


def test_sizes_that_divide_pass(tmp_path):
    context = contexts.build(tiny.run_config(**EIGHT), tmp_path / "run", StopFlag())
    assert dict(context.mesh.shape) == {"replica": 1, "fsdp": 8, "tensor": 1}


def test_another_platform_than_the_one_asked_for_is_told(tmp_path):
    message = faults(tmp_path / "run", **EIGHT, runtime__platform="tpu")
    assert "'tpu'" in message and "'cpu'" in message
    assert "--config.runtime.platform=cpu" in message
    contexts.check_platform("cpu")
    contexts.check_platform("")


# A new model.


def test_a_new_model_gets_a_tokenizer_that_is_kept(tmp_path):
    with tiny.built(tmp_path / "run") as context:
        text = context.tokenizer
    assert context.model.vocab_size % 64 == 0
    assert text.vocab_size <= context.model.vocab_size
    files = {p.name: p.read_bytes() for p in (tmp_path / "run/tokenizer").iterdir()}
    said = arithmetic.demonstrations(1, seed=9)[0].messages[1]["content"]
    assert text.decode(text.encode(said)) == said
    # The second time it is read, not trained, even if the data are others.
    with tiny.built(tmp_path / "run", sft__data__num_problems=9) as again:
        assert again.tokenizer.encode(said) == text.encode(said)
    for path in (tmp_path / "run/tokenizer").iterdir():
        assert path.read_bytes() == files[path.name]
    assert not list((tmp_path / "run").glob("*.unfinished"))


def test_a_new_models_tokenizer_knows_the_users_own_text(tmp_path):
    path = tmp_path / "talks.jsonl"
    rows = [{"prompt": "Żółw?", "completion": f"δ {i} ok"} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with tiny.built(tmp_path / "run", sft__data__train=path) as context:
        text = context.tokenizer
    assert text.decode(text.encode("Żółw δ")) == "Żółw δ"


def test_a_workdir_says_what_model_it_holds(tmp_path):
    with tiny.built(tmp_path / "run") as context:
        assert contexts.read_model_file(tmp_path / "run") == context.model
    scaling = RopeScaling("llama3", 8.0, 8192)
    layers = (Attention(window=4), Attention(0, 50_000.0, scaling))
    scaled = dataclasses.replace(context.model, attention=layers)
    path = tmp_path / "run" / contexts.MODEL_FILE
    path.write_text(json.dumps(dataclasses.asdict(scaled)))
    assert contexts.read_model_file(tmp_path / "run") == scaled
    path.write_text('{"num_layers": 2, "rope_scaling": null}')
    with pytest.raises(ConfigError, match=r"model\.json does not describe a model"):
        contexts.read_model_file(tmp_path / "run")


def test_new_weights_follow_from_the_seed(tmp_path):
    found = []
    for seed in (0, 0, 1):
        with tiny.built(tmp_path / "run", seed=seed) as context:
            found.append(np.asarray(contexts.first_params(context).embed_VD))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.01


# A downloaded model.


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """A Hugging Face folder with the tokenizer of a tiny chain."""
    folder = tmp_path_factory.mktemp("downloaded")
    with tiny.built(folder / "run") as context:
        params = contexts.first_params(context)
        export.save_params(params, context.model, folder / "model")
    for path in (folder / "run" / "tokenizer").iterdir():
        (folder / "model" / path.name).write_bytes(path.read_bytes())
    return folder / "model", params, context.model


def test_a_downloaded_model_brings_its_sizes_weights_and_tokenizer(
    downloaded, tmp_path
):
    source, params, model = downloaded
    changes = {"model__path": source, "model__remat": "layer"}
    with tiny.built(tmp_path / "run", **changes) as context:
        read = contexts.first_params(context)
    assert context.model == dataclasses.replace(model, remat="layer")
    for ours, theirs in zip(
        jax.tree.leaves(read), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    # The workdir can be used without the folder that it came from.
    kept = tmp_path / "run" / contexts.TOKENIZER_FOLDER
    again = contexts.tokenizer.load(kept)
    said = "Start with 9, minus 4."
    assert again.encode(said) == context.tokenizer.encode(said)
    assert again.stop_ids == context.tokenizer.stop_ids


# Folders and signals.


def test_a_flat_config_lives_in_the_workdir_itself(tmp_path):
    with tiny.built(tmp_path) as context:
        sft, rl = context.run.stages
        assert context.folder(rl) == tmp_path / "rl"
        flat = dataclasses.replace(sft, prefix="")
        assert context.folder(flat) == tmp_path


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_is_noticed_at_the_next_check(signum, code):
    signum = getattr(signal, signum)
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    stop = StopFlag()
    try:
        stop.install()
        stop.check()
        os.kill(os.getpid(), signum)
        with pytest.raises(Preempted) as stopped:
            stop.check()
        assert stopped.value.code == code
        if signum == signal.SIGINT:  # a second one need not wait for a check
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def signalled(signum):
    stop = StopFlag()
    stop._signum = signum
    return stop


@pytest.mark.parametrize(
    ("signums", "code"),
    [([0, 15], 143), ([15, 0], 143), ([15, 15], 143), ([0, 2, 15], 130)],
)
def test_a_signal_to_one_process_stops_all_of_them_alike(monkeypatch, signums, code):
    asked = []

    def gather(name, value, secs):
        asked.append((name, value, secs))
        return signums

    monkeypatch.setattr(contexts.processes, "gather", gather)
    monkeypatch.setattr(contexts.processes, "is_alone", lambda: False)
    for signum in signums:
        stop = signalled(signum)
        stop.check()  # none stops by itself, where the others would wait for it
        with pytest.raises(Preempted) as stopped:
            stop.check_together(9.0)
        assert stopped.value.code == code
    assert asked == [("stop", signum, 9.0) for signum in signums]


def test_processes_without_a_signal_go_on(monkeypatch):
    monkeypatch.setattr(contexts.processes, "gather", lambda *_: [0, 0, 0])
    signalled(0).check_together(9.0)


def test_a_process_alone_asks_nobody():
    signalled(0).check_together(0.0)
    with pytest.raises(Preempted):
        signalled(signal.SIGTERM).check_together(0.0)


def test_eight_devices_are_what_these_tests_run_on():
    assert make_mesh().size == 8
