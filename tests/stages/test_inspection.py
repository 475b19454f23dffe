"""What `--inspect_data` shows, and that it does nothing else."""

import json
import os
import re
import subprocess
import sys

import pytest

import tiny_pairs
import tiny_run
import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.errors import ConfigError
from rl_jax.stages import inspection, reading


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(reading, "_kept", {})
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def shown(capsys, workdir=None, **changes):
    inspection.show(tiny.run_config(**changes), workdir)
    return capsys.readouterr().out


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_every_stage_and_source_is_shown_with_masks_ids_golds_and_lengths(
    capsys, tmp_path
):
    values = [
        {"prompt": f"{i} times 1?", "answer": [str(i), f"{i}.0"], "level": 3}
        for i in range(5)
    ]
    path = write(tmp_path / "mine.jsonl", values)
    out = shown(capsys, rl__data__train=f"{path}@0.25,arithmetic@0.75")
    titles = re.findall(r"^---- (\S+) = ", out, re.MULTILINE)
    kinds = ["sft.data.train", "sft.data.eval", "rl.data.train", "rl.data.eval"]
    assert titles == kinds
    assert re.search(r"^stop tokens   .*<\|end\|> \(\d+\)$", out, re.MULTILINE)
    # Two rows of each source, one of each evaluation.
    heads = re.findall(r"^row (\d) of (.*?), id [0-9a-f]{16}", out, re.MULTILINE)
    both = [("1", "arithmetic"), ("2", "arithmetic")]
    own = [("1", str(path)), ("2", str(path))]
    assert heads == [*both, both[0], *own, *both, both[0]]
    # A demonstration: what the assistant says is learnt, with its end.
    assert re.search(r"<\|assistant\|>│⟦[^⟧]*│<\|end\|>⟧\n  ids          \d+ \d+", out)
    # A problem: its prompt, the golds, the other columns, the share of its source.
    assert "│<|assistant|>\n" in out
    assert "  answer       '1' or '1.0'" in out
    assert "  for rewards  answer, level" in out
    assert f"5 prompts of {path}, 25.0% of what is drawn" in out
    assert re.search(r"mine.jsonl( +\d+){4}$", out, re.MULTILINE)
    # How the first step is filled, as the stage fills it.
    filled = re.search(r"(\d+) conversations in 4 rows of 96 tokens: (.*) padding", out)
    assert filled and int(filled[1]) > 4
    shares = [float(x) for x in re.findall(r"([\d.]+)%", filled[2])]
    assert sum(shares) == pytest.approx(100, abs=0.2) and shares[0] > 5


def test_what_is_left_out_is_counted(capsys, tmp_path):
    values = [{"prompt": "one", "answer": "1"}, {"prompt": "x " * 99, "answer": "2"}]
    path = write(tmp_path / "mine.jsonl", values)
    out = shown(capsys, rl__data__train=path)
    assert "1 of 2 left out: longer than 64 tokens" in out


def test_tools_and_template_variables_are_shown(capsys, tmp_path):
    value = {"prompt": "one", "tools": [{"name": "add"}], "enable_thinking": False}
    path = write(tmp_path / "mine.jsonl", [value])
    with tiny.built(tmp_path / "run") as context:
        template = context.tokenizer.chat_template
    config = tmp_path / "run" / "tokenizer" / "tokenizer_config.json"
    template = "{% if tools %}{{ enable_thinking }}{{ a }}{% endif %}" + template
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "chat_template": template})
    )
    changes = {"rl__data__train": path, "rl__data__template_variables": "a=1"}
    alone = {"stages": "rl", "rl__init": "base", "rl__eval__every": 0}
    out = shown(capsys, tmp_path / "run", **changes, **alone)
    assert "  tools        1\n" in out
    assert "  template     {'a': 1, 'enable_thinking': False}\n" in out


def test_the_tokenizer_of_a_run_that_was_begun_is_taken(capsys, tmp_path):
    with tiny.built(tmp_path / "run") as context:
        size = context.tokenizer.vocab_size
    # Other data would train another tokenizer.
    path = write(tmp_path / "mine.jsonl", [{"prompt": "ж", "answer": "1"}])
    changes = {"rl__data__train": path, "sft__data__num_problems": 9}
    assert f"{size} tokens" in shown(capsys, tmp_path / "run", **changes)
    assert "<unk>" in shown(capsys, tmp_path / "run", **changes)
    assert "<unk>" not in shown(capsys, **changes)


def test_colour_is_forced_by_the_environment(capsys, monkeypatch):
    assert "\x1b[" not in shown(capsys)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = shown(capsys)
    assert "\x1b[32m" in out and "⟦" not in out


def test_faulty_data_are_an_error(tmp_path):
    path = write(tmp_path / "mine.jsonl", [{"neither": 1}])
    with pytest.raises(ConfigError, match="mine.jsonl, row 1"):
        inspection.show(tiny.run_config(rl__data__train=path), None)


def test_the_command_needs_no_workdir_and_writes_compiles_and_loads_nothing(tmp_path):
    words = [w for w in tiny_run.arguments("x") if not w.startswith("--workdir")]
    # A device or a compiler that is touched would be one that is not there.
    environment = tiny_run.environment() | {"JAX_PLATFORMS": "none"}
    before = os.environ.get("TMPDIR")
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.train", *words, "--inspect_data"],
        env=environment | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "---- rl.data.eval = arithmetic" in done.stdout
    assert not list(tmp_path.iterdir()) and os.environ.get("TMPDIR") == before


def test_pairs_are_shown_with_what_is_compared_of_each_reply(capsys, tmp_path):
    path = tiny_pairs.write_pairs(tmp_path / "pairs.jsonl", 9, 0)
    inspection.show(tiny_pairs.config(path), None)
    out = capsys.readouterr().out
    assert "---- data.train = " in out
    assert out.count("  chosen: ") == out.count("  rejected: ") == 2
    assert re.search(r"rejected: \d+ tokens, \d+ compared", out)
    assert re.search(r"first step: 8 pairs in \d micro-batches of 2 rows of 48", out)


def test_texts_are_shown_as_they_are_cut_and_what_is_held_out(capsys, tmp_path):
    path = write(tmp_path / "texts.jsonl", [{"text": "one two " * 30}, {"text": "two"}])
    config = configs.stage("pretrain")
    config.data.train, config.data.held_out = str(path), "arithmetic"
    config.batch.row_tokens, config.eval.every = 16, 1
    config.data.num_eval_problems = 3
    inspection.show(configs.resolve(config), None)
    out = capsys.readouterr().out
    assert out.count(": 17 tokens, 17 learnt") == 3  # two and one held out
    assert "---- data.held_out = arithmetic" in out
    assert re.search(r"the first step: \d+ pieces in 8 rows of 16 tokens: ", out)
    assert "none is cut" not in out


def selecting(train="arithmetic"):
    """Pairs that a stage writes, and who takes them."""
    config = configs.chain({"duels": "select", "rm": "reward_model"})
    config.duels.data.train = train
    config.duels.select.keep = "pairs"
    config.rm.init, config.rm.data.train = "base", "duels"
    return configs.resolve(config)


def test_what_a_stage_is_to_write_is_not_looked_for(capsys):
    inspection.show(selecting(), None)
    out = capsys.readouterr().out
    assert "---- duels.data.train = arithmetic" in out
    assert "not there yet: duels will write it" in out


def test_what_a_stage_has_written_is_shown_reply_by_reply(capsys, tmp_path):
    folder = tmp_path / "duels"
    folder.mkdir()
    values = [
        {"prompt": f"{i} times 1?", "chosen": f"{i}", "rejected": "no"}
        for i in range(5)
    ]
    write(folder / "data.jsonl", values)
    inspection.show(selecting(), tmp_path)
    out = capsys.readouterr().out
    assert "not there yet" not in out
    assert re.findall(r"rank (\d): \d+ tokens, scored at the last", out) == list("0101")
