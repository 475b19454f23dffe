"""Where each stage of a run gets its weights from."""

import dataclasses
import functools
import json
import shutil
import signal

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import tiny_run
import tiny_stage as tiny
from rl_jax import checkpoint, train
from rl_jax.errors import ConfigError
from rl_jax.models import export
from rl_jax.models.params import abstract_params
from rl_jax.stages import chain, run_state, weights
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Preempted, StopFlag


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


def stage_params(context, folder):
    abstract = abstract_params(context.model, context.mesh)
    return checkpoint.load_params(folder / "checkpoints", abstract)


def assert_same(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_second_stage_starts_from_exactly_the_weights_of_the_first(workdir):
    # The tiny chain's second stage has a learning rate of 0: it ends as it began.
    with tiny.built(workdir, **tiny.SHORT) as context:
        sft, rl = (stage_params(context, workdir / name) for name in ("sft", "rl"))
        new = contexts.first_params(context)
    assert_same(rl, sft)
    assert np.abs(np.asarray(sft.embed_VD) - np.asarray(new.embed_VD)).max() > 1e-3


# The kinds of `init`.


def first_weights(folder, **changes):
    """What the second stage would begin with, and what a new model has."""
    with tiny.built(folder, **changes) as context:
        init = context.run.stages[1].init
        params = weights.policy(context, init, "rl.init")()
        return context, params, contexts.first_params(context)


def test_base_means_the_models_own_weights(workdir):
    _, params, new = first_weights(workdir, rl__init="base")
    assert_same(params, new)


def test_a_stages_name_means_its_newest_checkpoint(workdir):
    context, params, _ = first_weights(workdir, rl__init="sft")
    assert_same(params, stage_params(context, workdir / "sft"))


def test_the_folder_of_another_runs_stage_may_be_given(workdir, tmp_path):
    context, params, new = first_weights(tmp_path, rl__init=workdir / "sft")
    assert_same(params, stage_params(context, workdir / "sft"))
    assert np.abs(np.asarray(params.embed_VD) - np.asarray(new.embed_VD)).max() > 1e-3


def test_a_hugging_face_folder_may_be_given(workdir, tmp_path):
    with tiny.built(workdir) as context:
        params = stage_params(context, workdir / "sft")
        export.save_params(params, context.model, tmp_path / "model")
    _, read, _ = first_weights(tmp_path / "run", rl__init=tmp_path / "model")
    assert_same(read, params)


@pytest.mark.parametrize("what", ["nothing", "a whole chain", "an unsaved stage"])
def test_a_folder_without_weights_is_told(workdir, tmp_path, what):
    folder = tmp_path / "given"
    folder.mkdir()
    if what == "a whole chain":
        folder = workdir
    elif what == "an unsaved stage":
        (folder / "checkpoints").mkdir()
    with pytest.raises(ConfigError) as error:
        first_weights(tmp_path / "run", rl__init=folder)
    message = str(error.value)
    assert str(folder) in message and len(message.splitlines()) <= 3
    assert "checkpoints" in message


def test_a_word_that_is_no_folder_is_told_with_what_may_stand_there():
    with pytest.raises(ConfigError, match="'base', 'new', 'sft'"):
        tiny.run_config(rl__init="sftt")


# The run.


def run(folder, kinds, **changes):
    """Runs the chain with made-up kinds of stages; what was told."""
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "make_mesh", tiny.one_device)
        patch.setattr(chain, "KINDS", kinds)
        config = tiny.run_config(**changes)
        started = functools.partial(told.append, "started")
        chain.run(config, folder, StopFlag(), started)
    return told


def test_stages_run_in_order_each_from_the_one_before(tmp_path, capsys):
    seen = []

    def first(context, stage, base):
        """Saves other weights than those it was given."""
        seen.append((stage.name, base()))
        tx, _ = run_state.optimiser_of(stage, context.model)
        with run_state.open_stage(context, stage, base, tx) as session:
            moved = jax.tree.map(lambda x: x + 1, session.state.params)
            state = dataclasses.replace(session.state, params=moved)
            session.save(stage.steps, state, {})
        return moved

    def second(context, stage, base):
        seen.append((stage.name, base()))
        return base()

    told = run(tmp_path, {"sft": first, "rl": second})
    assert told == ["started"]
    assert [name for name, _ in seen] == ["sft", "rl"]
    new, given = seen[0][1], seen[1][1]
    assert_same(given, jax.tree.map(lambda x: x + 1, new))
    out = capsys.readouterr().out
    assert "parameters" in out and str(tmp_path / "rl") in out


def test_a_wrong_beginning_of_a_later_stage_is_told_before_the_first(tmp_path):
    (tmp_path / "empty").mkdir()

    def never(context, stage, base):
        raise AssertionError("the first stage ran")

    kinds = {"sft": never, "rl": never}
    with pytest.raises(ConfigError, match="config.rl.init"):
        run(tmp_path / "run", kinds, rl__init=tmp_path / "empty")


# The export at the end.


def one_step(params):
    """A kind of stage that ends with these weights, saved."""

    def kind(context, stage, base):
        tx, _ = run_state.optimiser_of(stage, context.model)
        with run_state.open_stage(context, stage, lambda: params, tx) as session:
            if session.start < stage.steps:
                session.save(stage.steps, session.state, {})
            return session.state.params

    return kind


def exported(folder, value, **changes):
    """Runs a chain that ends with all weights at a value; when the export was made."""
    with tiny.built(folder, **changes) as context:
        params = jax.tree.map(lambda x: x * 0 + value, contexts.first_params(context))
    kinds = {"sft": lambda context, stage, base: base(), "rl": one_step(params)}
    run(folder, kinds, **{"rl__init": "base", **changes})
    model = folder / chain.EXPORT / "model.safetensors"
    return model.stat().st_mtime_ns if model.is_file() else None


def values_in(folder):
    tensors = load_file(folder / chain.EXPORT / "model.safetensors").values()
    return {float(x) for tensor in tensors for x in np.unique(tensor)}


def test_the_last_stages_weights_are_exported_once(tmp_path, capsys):
    first = exported(tmp_path, 1.5)
    assert values_in(tmp_path) == {1.5}
    line = [x for x in capsys.readouterr().out.splitlines() if x.startswith("exported")]
    assert line[0].startswith(f"exported:    {tmp_path / 'huggingface'} (float32, ")
    names = {p.name for p in (tmp_path / chain.EXPORT).iterdir()}
    beside = {p.name for p in (tmp_path / "tokenizer").iterdir()}
    assert names == beside | {"config.json", "model.safetensors", "tokenizer.json"}
    assert exported(tmp_path, 2.5) == first, "a finished run exports nothing again"
    assert "exported:" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["more steps", "other weights", "cut", "killed"])
def test_an_export_that_is_not_of_the_last_checkpoint_is_made_again(tmp_path, what):
    first, changes = exported(tmp_path, 1.5), {}
    folder = tmp_path / chain.EXPORT
    if what == "more steps":
        changes = {"rl__steps": 7}
        (tmp_path / "rl" / "checkpoints" / "6").rename(tmp_path / "away")
    elif what == "other weights":
        shutil.rmtree(tmp_path / "rl")
    elif what == "cut":
        (folder / "tokenizer_config.json").unlink()
    else:  # after the old folder went away and before the new one had its name
        folder.rename(tmp_path / "huggingface.old")
        (tmp_path / "huggingface.unfinished").mkdir()
    assert exported(tmp_path, 2.5, **changes) not in (None, first)
    kept = what in ("cut", "killed")
    assert values_in(tmp_path) == ({1.5} if kept else {2.5})
    assert not list(tmp_path.glob("huggingface.*ed")) + list(tmp_path.glob("*.old"))


def test_a_run_that_trains_nothing_exports_nothing(tmp_path):
    assert exported(tmp_path, 1.5, sft__steps=0, rl__steps=0) is None
    assert not (tmp_path / chain.EXPORT).exists()


def test_a_folder_of_somebody_else_is_told_before_the_first_stage(tmp_path):
    (tmp_path / chain.EXPORT).mkdir()
    (tmp_path / chain.EXPORT / "model.safetensors").write_text("precious")

    def never(context, stage, base):
        raise AssertionError("the first stage ran")

    with pytest.raises(ConfigError, match="is not an export of this run"):
        run(tmp_path, {"sft": never, "rl": never})
    assert (tmp_path / chain.EXPORT / "model.safetensors").read_text() == "precious"


def test_a_config_of_another_model_is_told_before_the_first_stage(workdir, tmp_path):
    with tiny.built(workdir) as context:
        params = stage_params(context, workdir / "sft")
        source = tmp_path / "model"
        export.save_folder(params, context.model, source, workdir / "tokenizer")

    def never(context, stage, base):
        raise AssertionError("the first stage ran")

    shutil.copytree(source, tmp_path / "run" / "tokenizer")
    path = tmp_path / "run" / "tokenizer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": 5.0}))
    with pytest.raises(ConfigError, match="of another model: attention"):
        kinds = {"sft": never, "rl": never}
        run(tmp_path / "run", kinds, model__path=source)


def test_a_model_that_was_read_goes_back_in_its_type_with_its_files(workdir, tmp_path):
    with tiny.built(workdir) as context:
        params = stage_params(context, workdir / "sft")
        source = tmp_path / "model"
        export.save_folder(
            params, context.model, source, workdir / "tokenizer", dtype="bfloat16"
        )
    (source / "added_tokens.json").write_text("{}")

    def kind(context, stage, base):
        return base()

    kinds, changes = {"sft": kind, "rl": kind}, {"model__path": source}
    run(tmp_path / "run", kinds, rl__init="base", **changes)
    want = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "run" / chain.EXPORT / "model.safetensors")
    assert found.keys() == want.keys()
    for name in want:
        assert found[name].dtype == want[name].dtype == ml_dtypes.bfloat16
        assert found[name].tobytes() == want[name].tobytes()
    for path in (tmp_path / "run" / "tokenizer").iterdir():
        copy = tmp_path / "run" / chain.EXPORT / path.name
        assert copy.read_bytes() == path.read_bytes()


# The command.


def train_with(monkeypatch, workdir, run, **changes):
    """The command with a made-up chain; its exit code."""
    monkeypatch.setattr(chain, "run", run)
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    return train.main(tiny_run.arguments(workdir, **changes))


def test_a_config_that_changed_since_the_workdir_was_begun_is_noted(
    tmp_path, monkeypatch, capsys
):
    def begin(config, workdir, stop, started, choice):
        started()

    assert train_with(monkeypatch, tmp_path, begin) == 0
    assert "note:" not in capsys.readouterr().out
    assert train_with(monkeypatch, tmp_path, begin) == 0
    assert "note:" not in capsys.readouterr().out
    changes = {"rl__steps": 9, "rl__objective__clip_low": 0.1}
    assert train_with(monkeypatch, tmp_path, begin, **changes) == 0
    notes = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note:")]
    assert [note.split()[1] for note in notes] == [
        "config.rl.objective.clip_low",
        "config.rl.steps",
    ]
    assert "was 6 when" in notes[1] and "now 9" in notes[1]
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["rl"]["steps"] == 9


def test_a_preempted_run_exits_with_the_signals_code(tmp_path, monkeypatch):
    def preempted(config, workdir, stop, started, choice):
        raise Preempted(signal.SIGTERM)

    assert train_with(monkeypatch, tmp_path, preempted) == 143


def test_faults_in_the_data_are_told_before_the_chain_begins(tmp_path, monkeypatch):
    def never(config, workdir, stop, started, choice):
        raise AssertionError("the chain began")

    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 + 1?"}\n')
    with pytest.raises(ConfigError, match="rows.jsonl"):
        train_with(monkeypatch, tmp_path / "run", never, rl__data__train=path)
    assert not (tmp_path / "run").exists()
