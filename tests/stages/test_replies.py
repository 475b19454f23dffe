"""Replies on the disk: complete, torn, of another config; and the requests for them."""

import contextlib
import dataclasses
from typing import Any

import pytest

import data_stages
import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.errors import ConfigError
from rl_jax.stages import context as contexts
from rl_jax.stages import replies
from rl_jax.stages.context import Preempted

N, CHUNK = 10, 4


class Stop:
    """Asks to stop at the nth look."""

    def __init__(self, after):
        self.left = after

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise Preempted(15)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    run = data_stages.run_of({"pick": "select"})
    with data_stages.built(tmp_path_factory.mktemp("replies"), run) as made:
        yield made


PROMPTS = [tiny.prompt((1, 5 + i), f"ask {i}", str(i)) for i in range(N)]


def value(completion):
    request, index = map(int, completion.split())
    return None if request == 3 else float((request + index) % 3)


def draw(context, folder, *, engine=None, stop=None, told=None, reward=None, **rollout):
    """Draws with an engine and workers that are made up; (replies, requests)."""
    engine = engine or tiny.FakeEngine()
    context = dataclasses.replace(context, workdir=folder)
    if stop is not None:
        context = dataclasses.replace(context, stop=stop)
    stage = context.run.stages[0]
    if rollout:
        changed = dataclasses.replace(stage.rollout, **rollout)
        stage = dataclasses.replace(stage, rollout=changed)
    if reward:
        changed = dataclasses.replace(stage.reward, **reward)
        stage = dataclasses.replace(stage, reward=changed)
    context.folder(stage).mkdir(parents=True, exist_ok=True)
    text: Any = tiny.FakeText()
    context = dataclasses.replace(context, tokenizer=text)
    with pytest.MonkeyPatch.context() as patch:
        pool = contextlib.nullcontext(tiny.FakePool(value))
        patch.setattr(replies, "make_engine", lambda *_: engine)
        patch.setattr(replies, "make_pool", lambda *_: pool)
        patch.setattr(replies, "check_rows", lambda *_: None)
        (params,) = tiny.anything(None)
        log = (lambda line: None) if told is None else told.append
        return replies.draw(context, stage, lambda: params, PROMPTS, log)


def test_every_prompt_is_asked_once_and_its_replies_are_kept_in_order(
    context, tmp_path
):
    engine = tiny.FakeEngine()
    found = draw(context, tmp_path, engine=engine)
    assert sorted(r.id for r in engine.requests) == list(range(N))
    assert {r.num_samples for r in engine.requests} == {4}
    assert [[r.text for r in group] for group in found] == [
        [f"{request} {index}" for index in range(4)] for request in range(N)
    ]
    assert [r.score for r in found[1]] == [1.0, 2.0, 0.0, 1.0]
    assert [r.correct for r in found[1]] == [True, True, False, True]
    assert {r.score for r in found[3]} == {None}
    assert {r.num_tokens for group in found for r in group} == {3}
    lines = data_stages.lines(tmp_path / "pick" / replies.FILE)
    assert len(lines) == 1 + N and lines[0]["prompts"] == N
    assert [replies.read(line) for line in lines[1:]] == found


def test_a_stage_draws_from_a_stream_of_its_own(context):
    stage = context.run.stages[0]
    other = dataclasses.replace(stage, name="other")
    streams = [
        request.stream
        for one in (stage, other)
        for request, _ in replies.requests(one, PROMPTS, 0, 3)
    ]
    assert len(set(streams)) == 2 and not {0, 1, 2} & set(streams)


def test_what_is_drawn_is_not_drawn_again(context, tmp_path):
    found = draw(context, tmp_path)
    engine = tiny.FakeEngine()
    assert draw(context, tmp_path, engine=engine) == found
    assert not engine.requests


@pytest.mark.parametrize("after", [0, 1, 4, 9, 14, 19])
def test_a_stopped_draw_goes_on_to_the_same_file(context, tmp_path, after):
    draw(context, tmp_path / "whole")
    whole = (tmp_path / "whole" / "pick" / replies.FILE).read_bytes()
    with pytest.raises(Preempted):
        draw(context, tmp_path / "cut", stop=Stop(after))
    file = tmp_path / "cut" / "pick" / replies.FILE
    assert whole.startswith(file.read_bytes()) and file.read_bytes() != whole
    there = len(data_stages.lines(file)) - 1
    engine, told = tiny.FakeEngine(), []
    draw(context, tmp_path / "cut", engine=engine, told=told)
    assert file.read_bytes() == whole
    assert len(engine.requests) == N - there and there % CHUNK == 0
    assert any(f"{there} of 10 prompts asked before" in line for line in told) == (
        there > 0
    )


@pytest.mark.parametrize("lost", [1, 7, 400, 700, 1100, 5000])
def test_a_file_that_ends_anywhere_is_completed_to_the_same(context, tmp_path, lost):
    draw(context, tmp_path)
    file = tmp_path / "pick" / replies.FILE
    whole = file.read_bytes()
    file.write_bytes(whole[: max(len(whole) - lost, 0)])
    draw(context, tmp_path)
    assert file.read_bytes() == whole


def test_bytes_that_are_no_json_end_what_is_taken_up(context, tmp_path):
    draw(context, tmp_path)
    file = tmp_path / "pick" / replies.FILE
    whole = file.read_bytes()
    lines = whole.split(b"\n")
    lines[7] = b"\x00" * len(lines[7])  # as a crash of the machine leaves them
    file.write_bytes(b"\n".join(lines))
    engine = tiny.FakeEngine()
    draw(context, tmp_path, engine=engine)
    assert file.read_bytes() == whole
    assert sorted(r.id for r in engine.requests) == list(range(4, N))


def test_replies_of_another_config_are_not_taken_up(context, tmp_path):
    draw(context, tmp_path)
    engine, told = tiny.FakeEngine(), []
    draw(context, tmp_path, engine=engine, told=told, temperature=0.5)
    assert len(engine.requests) == N
    assert "drawn by another config" in told[0]


def test_a_damaged_header_is_told(context, tmp_path):
    draw(context, tmp_path)
    file = tmp_path / "pick" / replies.FILE
    whole = file.read_bytes()
    file.write_bytes(b"?" + whole)
    told: list[str] = []
    draw(context, tmp_path, told=told)
    assert "first line is damaged" in told[0] and file.read_bytes() == whole


def test_other_processes_write_nothing_and_take_up_what_the_first_found(
    context, tmp_path, monkeypatch
):
    found = draw(context, tmp_path)
    file = tmp_path / "pick" / replies.FILE
    whole = file.read_bytes()
    monkeypatch.setattr(replies, "is_lead", lambda: False)
    for done in (N, CHUNK, 0):
        first = lambda name, value, secs, done=done: [done, value]  # noqa: E731
        monkeypatch.setattr(replies.processes, "gather", first)
        engine = tiny.FakeEngine()
        assert draw(context, tmp_path, engine=engine) == found
        assert len(engine.requests) == N - done
        assert file.read_bytes() == whole


def test_the_score_of_a_reward_model_is_added(context, tmp_path, monkeypatch):
    class Pool(tiny.FakePool):
        def weight(self, source):
            return 1.0

    class Judge:
        def score(self, pieces):
            return [float(len(piece)) for piece in pieces]

    opened = []

    def open_judge(context, name, key, *, row_tokens):
        opened.append((name, key, row_tokens))
        return Judge()

    monkeypatch.setattr(replies, "open_judge", open_judge)
    monkeypatch.setattr(tiny, "FakePool", Pool)
    monkeypatch.setattr(replies.origin, "sampling", lambda *_: "not looked at")
    reward = {"model": "rm", "model_weight": 0.5}
    found = draw(context, tmp_path, reward=reward)
    # Pieces are of 5 tokens: two of the prompt, request, index and stop.
    assert [r.score for r in found[1]] == [1 + 2.5, 2 + 2.5, 0 + 2.5, 1 + 2.5]
    assert {r.score for r in found[3]} == {None}
    assert opened == [("rm", "pick.reward.model", 64 + 8)]


def test_a_row_that_cannot_be_judged_is_told_before_weights_are_read(tmp_path):
    rows = [{"prompt": "What is a dozen?", "answer": "a dozen"}]
    data = data_stages.write(tmp_path / "x.jsonl", rows)
    run = data_stages.run_of(
        {"pick": "select"},
        pick__data__train=str(data),
        pick__reward__functions=("number",),
    )
    with data_stages.built(tmp_path / "run", run) as context:
        stage = context.run.stages[0]
        context.folder(stage).mkdir()
        prompts = real_prompts(context, stage)
        (unread,) = tiny.anything(None)
        with pytest.raises(ConfigError, match="its reference answer is of no use"):
            replies.draw(context, stage, unread, prompts, lambda _: None)


def test_the_real_engine_draws_the_same_after_a_stop(tmp_path):
    run: configs.Run = data_stages.run_of({"pick": "select"})
    files = []
    for name, afters in (("whole", []), ("cut", [3, 6])):
        with data_stages.built(tmp_path / name, run) as context:
            stage = context.run.stages[0]
            context.folder(stage).mkdir()

            def one(context, stage=stage):
                prompts = real_prompts(context, stage)
                params = contexts.first_params(context)
                replies.draw(context, stage, lambda: params, prompts, lambda _: None)

            for after in afters:
                stopped: Any = Stop(after)
                with pytest.raises(Preempted):
                    one(dataclasses.replace(context, stop=stopped))
            one(context)
            files.append((context.folder(stage) / replies.FILE).read_bytes())
    assert files[0] == files[1] and files[0].count(b"\n") == 1 + N


def real_prompts(context, stage):
    from rl_jax.stages import inputs

    return list(inputs.train_prompts(stage, context.tokenizer, context.run.seed))
