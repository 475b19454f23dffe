"""Curation as a stage: what it leaves out, writes, and measures by sampling."""

import json

import pytest

import data_stages
import tiny_stage as tiny
from rl_jax import command_line
from rl_jax import curate as command
from rl_jax.data.rows import read_rows
from rl_jax.errors import ConfigError
from rl_jax.stages import curate, replies
from rl_jax.stages.selection import Reply

LONG = "the river runs past the mill and the old bridge down to the sea where ships lie"
TEST = "how many ships lie in the harbour when the tide is out and the wind is low"
ROWS = [
    {"prompt": LONG, "answer": "1"},
    {"prompt": f"{LONG} too", "answer": "1"},
    {"prompt": "b\u2028b", "answer": "2", "note": '"}\n{ \ud83d'},
    {"prompt": "b \u2028 b", "answer": "3"},
    {"prompt": f"Tell me {TEST}", "answer": "4"},
    {"prompt": "c", "answer": "5"},
    {"prompt": "d", "answer": "6", "data_source": "own"},
]


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """A function that runs the stage with some keys: its work folder."""
    tame = [row for row in ROWS if "note" not in row]
    data = data_stages.write(tmp_path / "train.jsonl", tame)
    asked: list[list[str]] = []

    def draw(context, stage, base, prompts, log):
        """c is always solved, d never, the rest half of the time."""
        asked.append([p.row.messages[-1]["content"] for p in prompts])
        rates = {"c": 4, "d": 0}
        right = [rates.get(question, 2) for question in asked[-1]]
        return [
            tuple(
                Reply("x", float(k < n), "correct" if k < n else "wrong", 3, False)
                for k in range(4)
            )
            for n in right
        ]

    monkeypatch.setattr(replies, "draw", draw)

    def run(**keys):
        (unread,) = tiny.anything(None)
        keys = {"data__train": str(data)} | keys
        config = data_stages.run_of(
            {"clean": "curate"}, **{f"clean__{k}": v for k, v in keys.items()}
        )
        with data_stages.built(tmp_path / "run", config) as context:
            # Only now: no tokenizer can be trained on half of a surrogate pair.
            data_stages.write(data, ROWS)
            curate.run(context, context.run.stages[0], unread)
        return tmp_path / "run" / "clean"

    run.asked = asked  # pyright: ignore[reportFunctionMemberAccess]
    return run


@pytest.fixture
def other_columns(tmp_path):
    return str(data_stages.write(tmp_path / "test.jsonl", [{"question": TEST}]))


def prompts(folder):
    return [row["prompt"] for row in data_stages.lines(folder / "data.jsonl")]


def test_duplicates_and_contaminated_rows_are_removed_and_others_kept_as_they_were(
    clean, tmp_path
):
    test = data_stages.write(tmp_path / "test.jsonl", [{"prompt": TEST}])
    folder = clean(curate__against=str(test))
    assert data_stages.lines(folder / "data.jsonl") == [
        {**ROWS[0], "data_source": "train"},
        {**ROWS[2], "data_source": "train"},
        {**ROWS[5], "data_source": "train"},
        ROWS[6],
    ]
    stats = json.loads((folder / "data.stats.json").read_text())
    assert stats["removed"] == {
        "exact duplicate": 1,
        "near duplicate": 1,
        "contaminated": 1,
    }
    assert stats["conflicting_answers"] == 1
    assert stats["held_out"] == {str(test): {"prompts": 1, "found": 1}}
    (line,) = data_stages.lines(folder / "metrics.jsonl")
    assert line == {
        "step": 1,
        "curate/read": 7,
        "curate/kept": 4,
        "curate/removed": 3,
        "curate/contaminated": 1,
        "curate/duplicates": 2,
    }
    assert not clean.asked  # no weights are needed
    assert len(read_rows(folder / "data.jsonl")) == 4


def test_it_leaves_out_what_the_command_leaves_out(clean, tmp_path):
    test = data_stages.write(tmp_path / "test.jsonl", [{"prompt": TEST}])
    folder = clean(curate__against=str(test), curate__near=0.7, curate__by="row")
    words = [
        f"--data={tmp_path / 'train.jsonl'}",
        f"--out={tmp_path / 'out.jsonl'}",
        f"--against={test}",
        "--near=0.7",
        "--by=row",
    ]
    assert command_line.exit_on_config_error(command.main, words) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (folder / "data.jsonl").read_bytes()


def test_pass_rates_are_measured_on_what_is_left_and_bound(clean):
    folder = clean(
        curate__pass_rate=True,
        curate__min_pass_rate=0.25,
        curate__max_pass_rate=0.75,
    )
    assert len(clean.asked[0]) == 5 and f"{LONG} too" not in clean.asked[0]
    found = data_stages.lines(folder / "data.jsonl")
    assert [row["answer"] for row in found] == ["1", "2", "4"]
    assert [row["pass_rate"] for row in found] == [0.5] * 3
    stats = json.loads((folder / "data.stats.json").read_text())
    assert stats["removed"]["too easy"] == stats["removed"]["too hard"] == 1
    assert stats["pass_rates"]["0.5 to 0.6"] == {"read": 3, "kept": 3}
    (line,) = data_stages.lines(folder / "metrics.jsonl")
    assert line["curate/pass_rate"] == 0.5


def test_a_prompt_too_long_to_ask_has_no_pass_rate(clean):
    folder = clean(curate__pass_rate=True, rollout__max_prompt_tokens=20)
    stats = json.loads((folder / "data.stats.json").read_text())
    assert stats["removed"]["no pass rate"] == 2
    assert [row["answer"] for row in data_stages.lines(folder / "data.jsonl")] == [
        "2",
        "5",
        "6",
    ]


def test_a_built_in_task_is_read_and_decontaminated(clean):
    folder = clean(data__train="arithmetic", curate__near=0.0)
    rows = read_rows(folder / "data.jsonl")
    assert len(rows) == 10 and {row.data_source for row in rows} == {"arithmetic"}
    assert all(row.answer.isdigit() for row in rows)
    clean(data__train="arithmetic", curate__near=0.0, curate__against="arithmetic")
    stats = json.loads((folder / "data.stats.json").read_text())
    told = stats["held_out"]["arithmetic"]
    # Other problems in the same words: only the short run of numbers tells them apart.
    assert (
        told["prompts"] == 128
        and stats["kept"] + sum(stats["removed"].values()) == stats["read"] == 10
    )


def test_it_is_made_once_for_the_same_rows_and_keys(clean, tmp_path, capsys):
    folder = clean()
    before = (folder / "data.jsonl").stat().st_mtime_ns
    clean()
    assert (folder / "data.jsonl").stat().st_mtime_ns == before
    clean(curate__near=0.0)
    assert "made by another config" in capsys.readouterr().out
    assert len(prompts(folder)) == 6


def test_nothing_kept_is_an_error_that_says_why(clean):
    with pytest.raises(ConfigError) as error:
        clean(
            curate__pass_rate=True,
            curate__min_pass_rate=0.6,
            curate__near=0.1,
            curate__max_pass_rate=0.7,
        )
    assert "keeps none of 7 rows" in str(error.value)
    assert "curate.min_pass_rate" in str(error.value)


def test_a_held_out_file_of_unknown_columns_is_told(clean, other_columns):
    with pytest.raises(ConfigError, match="test.jsonl, row 1"):
        clean(curate__against=other_columns)
