"""Rejection sampling as a stage: the file it writes, and when it writes it again."""

import json
import pathlib
from typing import Any

import pytest

import data_stages
import tiny_stage as tiny
from rl_jax.config_keys import Select
from rl_jax.data.rankings import read_rankings
from rl_jax.data.rows import Row, read_conversations, read_preferences
from rl_jax.errors import ConfigError
from rl_jax.stages import replies, select, selection
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.selection import Reply

HOSTILE = (
    "two\nlines\u2028and more",
    "half \ud83d of a pair",
    '[{"role": "user", "content": "turns?"}]',
    '"}\n{"messages": [], "score": 9}',
    "<|end|><|user|>é 漢 \x00",
)
N = 6


def made_up(prompts):
    """Replies to prompt i: hostile ones with scores 0, 1/4, ..., turned i times."""
    found = []
    for i, _ in enumerate(prompts):
        texts = [HOSTILE[(i + k) % len(HOSTILE)] for k in range(4)]
        found.append(
            tuple(
                Reply(text, k / 4, "correct" if k > 1 else "wrong", 3 + k, False)
                for k, text in enumerate(texts)
            )
        )
    return found


def rows_file(path: pathlib.Path) -> pathlib.Path:
    rows = [
        {
            "prompt": f"What is {i} + {i}?",
            "answer": str(2 * i),
            "data_source": "sums" if i < 4 else "hard",
            "level": i,
        }
        for i in range(N)
    ]
    return data_stages.write(path / "train.jsonl", rows)


@pytest.fixture
def pick(tmp_path, monkeypatch):
    """A function that runs the stage with some keys: its work folder."""
    data, asked, others = rows_file(tmp_path), [], []

    def draw(context, stage, base, prompts, log, *, file="", engine: Any = None):
        asked.append(len(prompts))
        if not file:
            return made_up(prompts)
        others.append((stage.init, file, base, engine()))
        bad = [
            Reply(text, s, "wrong", 5, False) for text, s in (("a", 0.2), ("b", 0.1))
        ]
        return [tuple(bad)] * len(prompts)

    monkeypatch.setattr(replies, "new_engine", lambda *_: "the engine")
    monkeypatch.setattr(replies, "draw", draw)

    def run(**keys):
        (unread,) = tiny.anything(None)
        keys = {"data__train": str(data)} | keys
        config = data_stages.run_of(
            {"pick": "select"}, **{f"pick__{k}": v for k, v in keys.items()}
        )
        with data_stages.built(tmp_path / "run", config) as context:
            select.run(context, context.run.stages[0], unread)
        return tmp_path / "run" / "pick"

    run.asked = asked  # pyright: ignore[reportFunctionMemberAccess]
    run.others = others  # pyright: ignore[reportFunctionMemberAccess]
    return run


def test_the_best_reply_of_each_prompt_is_written_as_a_conversation(pick):
    folder = pick()
    found = data_stages.lines(folder / "data.jsonl")
    assert len(found) == N
    assert found[1] == {
        "messages": [
            {"role": "user", "content": "What is 1 + 1?"},
            {"role": "assistant", "content": HOSTILE[4]},
        ],
        "answer": "2",
        "data_source": "sums",
        "level": 1,
        "score": 0.75,
        "verdict": "correct",
    }
    talks = read_conversations(folder / "data.jsonl")
    assert [talk.messages[-1]["content"] for talk in talks] == [
        HOSTILE[(i + 3) % 5] for i in range(N)
    ]
    assert [talk.data_source for talk in talks] == ["sums"] * 4 + ["hard"] * 2


def test_all_correct_replies_pairs_and_rankings(pick):
    folder = pick(select__keep="correct")
    assert len(data_stages.lines(folder / "data.jsonl")) == 2 * N
    pick(select__keep="pairs")
    pairs = read_preferences(folder / "data.jsonl")
    for i, pair in enumerate(pairs):
        assert pair.chosen[0]["content"] == HOSTILE[(i + 3) % 5]
        assert pair.rejected[0]["content"] == HOSTILE[i % 5]
        assert pair.extra["margin"] == 0.75
        assert pair.prompt[0]["content"] == f"What is {i} + {i}?"
    pick(select__keep="rankings")
    for i, ranking in enumerate(read_rankings(folder / "data.jsonl")):
        assert [reply[0]["content"] for reply in ranking.replies] == [
            HOSTILE[(i + k) % 5] for k in range(4)
        ]
        assert ranking.rank == (3, 2, 1, 0)


def test_the_statistics_are_written_printed_and_one_line_of_metrics(pick, capsys):
    folder = pick(select__keep="correct", select__balance=True)
    stats = json.loads((folder / "data.stats.json").read_text())
    assert (stats["prompts"], stats["samples"], stats["rows"]) == (6, 24, 8)
    assert stats["left_out"] == {"wrong": 12, "balance": 4}
    assert stats["sources"]["hard"]["rows"] == stats["sources"]["sums"]["rows"] == 4
    (line,) = data_stages.lines(folder / "metrics.jsonl")
    assert line["step"] == 1 and line["select/rows"] == 8
    assert line["select/pass_rate"] == 0.5 and line["select/pass_at_k"] == 1.0
    assert line["select/mean_score"] == 0.375 and line["select/mean_score_kept"] > 0.5
    out = capsys.readouterr().out
    assert "replies kept                   8   33.3%  in 8 rows" in out
    assert "  sums: 4 rows of 4 prompts" in out
    assert "\u2028" not in out and "two\\nlines" in out  # samples, safe to print
    shown = data_stages.lines(folder / "samples" / "step_000001.jsonl")
    assert len(shown) == 24 and shown[0]["prompt"] == "What is 0 + 0?"


def test_few_prompts_are_taken_from_each_source_in_turn(pick, tmp_path):
    other = data_stages.write(
        tmp_path / "other.jsonl", [{"prompt": "Why?", "answer": "1"}] * 4
    )
    both = f"{tmp_path / 'train.jsonl'},{other}"
    folder = pick(data__train=both, select__max_prompts=3)
    found = data_stages.lines(folder / "data.jsonl")
    assert [row["data_source"] for row in found] == ["sums", "other", "sums"]


@pytest.mark.parametrize("keep", ["best", "pairs", "rankings"])
def test_other_data_are_appended_in_the_same_form(pick, tmp_path, keep):
    also = {
        "best": {"prompt": "Hi", "completion": "Hello", "note": 1},
        "pairs": {"prompt": "Hi", "chosen": "Hello", "rejected": "What"},
        "rankings": {"prompt": "Hi", "replies": ["Hello", "What"], "scores": [1, 0]},
    }[keep]
    human = data_stages.write(tmp_path / "human.jsonl", [also] * 3)
    folder = pick(select__keep=keep, select__also=str(human))
    found = data_stages.lines(folder / "data.jsonl")
    assert len(found) == N + 3
    stats = json.loads((folder / "data.stats.json").read_text())
    assert (stats["rows"], stats["also"]) == (N, 3)
    if keep == "best":
        assert found[-1] == {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
            ],
            "data_source": "human",
            "note": 1,
        }
        read_conversations(folder / "data.jsonl")
    elif keep == "pairs":
        last = read_preferences(folder / "data.jsonl")[-1]
        assert last.rejected[0]["content"] == "What" and last.data_source == "human"
    else:
        assert read_rankings(folder / "data.jsonl")[-1].rank == (0, 1)


def test_a_built_in_task_may_be_appended(pick):
    folder = pick(select__also="arithmetic", data__num_problems=5)
    found = data_stages.lines(folder / "data.jsonl")
    assert [row["data_source"] for row in found[N:]] == ["arithmetic"] * 5
    assert found[-1]["messages"][-1]["role"] == "assistant"


def test_the_worse_of_a_pair_may_be_written_by_another_policy(pick, capsys):
    folder = pick(select__keep="pairs", select__rejected="new")
    for i, pair in enumerate(read_preferences(folder / "data.jsonl")):
        assert pair.chosen[0]["content"] == HOSTILE[(i + 3) % 5]
        assert pair.rejected[0]["content"] == "b"
        assert pair.extra["margin"] == pytest.approx(0.65)
    ((init, file, base, engine),) = pick.others
    assert (init, file, engine) == ("new", "rejected.jsonl", "the engine")
    stats = json.loads((folder / "data.stats.json").read_text())
    assert stats["samples"] == 6 * N and stats["pass_rate"] == 0.5
    assert "the worse replies, by new" in capsys.readouterr().out


def test_a_share_of_the_prompts_is_kept_apart_for_other_stages(pick, tmp_path):
    # Of two rows with one prompt both are on one side.
    with open(tmp_path / "train.jsonl") as file:
        lines = file.read()
    (tmp_path / "train.jsonl").write_text(lines + lines)
    folder = pick(select__keep="correct", select__held_out=0.34)
    sides = [data_stages.lines(folder / f"{x}.jsonl") for x in ("data", "held_out")]
    learnt, apart = ({row["messages"][0]["content"] for row in x} for x in sides)
    assert (len(learnt), len(apart)) == (4, 2) and not learnt & apart
    assert [len(side) for side in sides] == [4 * 4, 2 * 4]
    stats = json.loads((folder / "data.stats.json").read_text())
    assert (stats["rows"], stats["held_out"]) == (24, 8)
    assert set(stats["files"]) == {"data.jsonl", "held_out.jsonl"}
    (folder / "held_out.jsonl").unlink()
    pick(select__keep="correct", select__held_out=0.34)
    assert data_stages.lines(folder / "held_out.jsonl") == sides[1]
    pick(select__keep="correct")
    assert not (folder / "held_out.jsonl").exists()


def test_one_prompt_cannot_be_divided(pick):
    with pytest.raises(ConfigError, match="keeps rows of one prompt only") as error:
        pick(select__held_out=0.5, select__max_prompts=1)
    assert len(str(error.value).splitlines()) <= 3


# Once made.


def test_a_finished_stage_is_not_run_again(pick, capsys):
    folder = pick()
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.is_file()}
    before.pop("log.txt")
    pick()
    assert pick.asked == [N]
    assert (
        before.items()
        <= {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}.items()
    )
    assert "is there, made from the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    "keys",
    [
        {"select__keep": "correct"},
        {"rollout__temperature": 0.5},
        {"reward__functions": ("maths",)},
        {"select__also": "arithmetic"},
        {"data__instruction": "Box it."},
    ],
)
def test_other_keys_make_it_again_and_say_so(pick, capsys, keys):
    folder = pick()
    pick(**keys)
    assert "is made again: it was made by another config" in capsys.readouterr().out
    assert pick.asked == [N, N]
    assert len(data_stages.lines(folder / "metrics.jsonl")) == 1


def test_other_rows_or_a_changed_result_make_it_again(pick, tmp_path, capsys):
    folder = pick()
    whole = (folder / "data.jsonl").read_bytes()
    (folder / "data.jsonl").write_bytes(whole[:-5])
    pick()
    assert (folder / "data.jsonl").read_bytes() == whole
    assert "data.jsonl is not the file that was written" in capsys.readouterr().out
    with open(tmp_path / "train.jsonl", "a") as file:
        file.write('{"prompt": "What is 9 + 9?", "answer": "18"}\n')
    pick()
    assert pick.asked == [N, N, N + 1]


def test_a_stage_killed_before_its_statistics_is_made_again(pick):
    folder = pick()
    (folder / "data.stats.json").unlink()
    pick()
    assert pick.asked == [N, N]
    assert len(data_stages.lines(folder / "metrics.jsonl")) == 1


def test_other_weights_make_it_again(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        replies, "draw", lambda *a: asked.append(a[0].run.seed) or made_up(a[3])
    )
    (unread,) = tiny.anything(None)
    for seed in (0, 1, 1):
        run = data_stages.run_of({"pick": "select"}, seed=seed)
        with data_stages.built(tmp_path, run) as context:
            select.run(context, context.run.stages[0], unread)
    assert asked == [0, 1]


def test_nothing_kept_is_an_error_that_says_why(pick, tmp_path):
    with pytest.raises(ConfigError) as error:
        pick(select__min_score=2.0)
    text = str(error.value)
    assert "24 are left out as 'below min_score'" in text
    assert "--config.pick.select.keep" in text and len(text.splitlines()) <= 3
    assert not (tmp_path / "run" / "pick" / "data.jsonl").exists()


def test_faulty_rows_to_append_are_told_before_anything_is_sampled(pick, tmp_path):
    human = data_stages.write(tmp_path / "human.jsonl", [{"prompt": "Hi"}])
    with pytest.raises(ConfigError, match="human.jsonl, row 1"):
        pick(select__also=str(human))
    assert not pick.asked


def test_a_row_keeps_its_tools_and_template_variables():
    tools = [{"type": "function", "function": {"name": "f"}}]
    message = {"role": "user", "content": "ask"}
    row = Row((message,), "", "s", 0, {}, tools, {"enable_thinking": False})
    group = selection.choose("s", made_up([0])[0], Select())
    (line,) = select._lines(Prompt(row, (1,)), group, "best")
    assert line["tools"] == tools
    assert line["chat_template_kwargs"] == {"enable_thinking": False}
    assert "answer" not in line
