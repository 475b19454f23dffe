"""The order of a chain: what is run again, what is not, and where it ends."""

import json
import re
from typing import Any

import pytest

import tiny_run
import tiny_stage as tiny
from rl_jax import train
from rl_jax.errors import ConfigError
from rl_jax.stages import chain, results
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Preempted, StopFlag


def stages(ran, accuracy=(0.25, 0.75), ends=None):
    """Made-up kinds that write an accuracy, and say that they ran."""

    def kind(context, stage, base):
        ran.append(stage.name)
        if ends and ends[0] == stage.name:
            raise ends[1]
        lines = [
            json.dumps({"step": step, "eval/accuracy": value})
            for step, value in enumerate(accuracy)
        ]
        (context.folder(stage) / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    return {"sft": kind, "rl": kind}


@pytest.fixture(autouse=True)
def _nothing_is_saved(monkeypatch):
    """The made-up stages save nothing, and are whole all the same."""
    monkeypatch.setattr(chain, "_is_there", lambda folder, stage: True)


def run(folder, kinds, choice=chain.Choice(), **changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "make_mesh", tiny.one_device)
        patch.setattr(chain, "KINDS", kinds)
        config = tiny.run_config(**{"export": False, "rl__init": "base", **changes})
        chain.run(config, folder, StopFlag(), choice=choice)


GATE: dict[str, Any] = {"sft__gate__metric": "eval/accuracy"}


def test_a_finished_stage_is_not_run_again(tmp_path, capsys):
    ran = []
    run(tmp_path, stages(ran))
    run(tmp_path, stages(ran))
    assert ran == ["sft", "rl"]
    assert "sft: finished before" in capsys.readouterr().out


def test_a_finished_stage_whose_weights_are_gone_is_run_again(tmp_path, monkeypatch):
    ran, gone = [], []
    monkeypatch.setattr(chain, "_is_there", lambda folder, stage: not gone)
    run(tmp_path, stages(ran))
    gone.append(True)
    run(tmp_path, stages(ran))
    assert ran == ["sft", "rl"] * 2


def test_a_chain_goes_on_at_the_stage_where_it_was_stopped(tmp_path):
    ran = []
    with pytest.raises(Preempted):
        run(tmp_path, stages(ran, ends=("rl", Preempted(15))))
    assert not results.read(tmp_path / "rl").finished
    run(tmp_path, stages(ran))
    assert ran == ["sft", "rl", "rl"]
    assert results.read(tmp_path / "rl").finished


def test_a_stage_with_more_steps_than_before_goes_on(tmp_path):
    ran = []
    run(tmp_path, stages(ran))
    run(tmp_path, stages(ran), rl__steps=9)
    assert ran == ["sft", "rl", "rl"]
    assert results.read(tmp_path / "rl").steps == 9


def test_a_stage_made_from_what_was_made_anew_is_noted(tmp_path, capsys):
    ran = []
    run(tmp_path, stages(ran), rl__init="sft")
    assert "note:" not in capsys.readouterr().out
    (tmp_path / "sft" / "result.json").unlink()
    run(tmp_path, stages(ran), rl__init="sft")
    assert ran == ["sft", "rl", "sft"]
    note = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note:")]
    assert len(note) == 1 and "rl was made from an earlier sft" in note[0]
    assert str(tmp_path / "rl") in note[0]


def test_a_missed_gate_ends_the_chain(tmp_path, capsys):
    ran = []
    with pytest.raises(chain.GateMissed) as missed:
        run(tmp_path, stages(ran), **GATE, sft__gate__at_least=0.8)
    assert ran == ["sft"]
    text = str(missed.value)
    assert "sft missed its gate, eval/accuracy at least 0.8: 0.75" in text
    assert len(text.splitlines()) <= 3
    assert "at least 0.8: missed" in capsys.readouterr().out
    # Not trained again, and missed again.
    with pytest.raises(chain.GateMissed):
        run(tmp_path, stages(ran), **GATE, sft__gate__at_least=0.8)
    assert ran == ["sft"]


def test_a_passed_gate_lets_the_chain_go_on(tmp_path, capsys):
    ran = []
    run(tmp_path, stages(ran), **GATE, sft__gate__rise=0.5)
    assert ran == ["sft", "rl"]
    assert "sft: gate passed, eval/accuracy 0.25 -> 0.75" in capsys.readouterr().out


def test_a_gate_on_what_is_not_written_names_what_is(tmp_path):
    gate: dict[str, Any] = {
        "sft__gate__metric": "eval/acuracy",
        "sft__gate__at_least": 0.1,
    }
    with pytest.raises(chain.GateMissed, match="eval/accuracy"):
        run(tmp_path, stages([]), **gate)


def test_from_goes_on_after_a_missed_gate(tmp_path):
    ran = []
    with pytest.raises(chain.GateMissed):
        run(tmp_path, stages(ran), **GATE, sft__gate__at_least=0.8)
    choice = chain.Choice(start="rl")
    run(tmp_path, stages(ran), choice, **GATE, sft__gate__at_least=0.8, rl__init="sft")
    assert ran == ["sft", "rl"]


def test_only_runs_one_stage(tmp_path):
    ran = []
    run(tmp_path, stages(ran), chain.Choice(only="sft"))
    assert ran == ["sft"]
    run(tmp_path, stages(ran), chain.Choice(only="rl"), rl__init="sft")
    assert ran == ["sft", "rl"]


@pytest.mark.parametrize("choice", [{"only": "rl"}, {"start": "rl"}])
def test_a_stage_whose_needs_are_not_done_is_refused(tmp_path, choice):
    ran = []
    with pytest.raises(ConfigError) as error:
        run(tmp_path, stages(ran), chain.Choice(**choice), rl__init="sft")
    assert not ran
    assert "config.rl.init names 'sft', which is not finished" in str(error.value)
    assert "`--from=sft`" in str(error.value)


def test_the_summary_is_printed_and_drawn(tmp_path, capsys):
    run(tmp_path, stages([]), **GATE, sft__gate__rise=0.5)
    out = capsys.readouterr().out
    row = re.search(r"^sft +sft .*$", out, re.MULTILINE)
    assert row and row[0].split()[-1] == "passed"
    assert (tmp_path / "summary.txt").read_text().strip() in out
    for name in ("summary.png", "curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_seconds_of_all_sessions_are_added_up(tmp_path):
    with pytest.raises(Preempted):
        run(tmp_path, stages([], ends=("sft", Preempted(15))))
    before = results.read(tmp_path / "sft").seconds
    assert before > 0
    run(tmp_path, stages([]))
    assert results.read(tmp_path / "sft").seconds > before


# The command.


def test_a_missed_gate_is_exit_code_3_and_one_message(tmp_path, monkeypatch, capsys):
    def missed(*_, **__):
        raise chain.GateMissed("sft missed its gate")

    monkeypatch.setattr(chain, "run", missed)
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    assert train.main(tiny_run.arguments(tmp_path)) == 3
    assert "error: sft missed its gate" in capsys.readouterr().err


def test_the_stages_to_run_are_passed_on(tmp_path, monkeypatch):
    told = []

    def take(config, workdir, stop, started, choice):
        told.append(choice)

    monkeypatch.setattr(chain, "run", take)
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    words = tiny_run.arguments(tmp_path)
    for flag in ("--only=rl", "--from=rl"):
        assert train.main([*words, flag]) == 0
    assert told == [chain.Choice(only="rl"), chain.Choice(start="rl")]
    for flag in ("--only=", "--only=rll", "--from"):
        with pytest.raises(ConfigError, match=flag[:6]):
            train.main([*words, flag])
