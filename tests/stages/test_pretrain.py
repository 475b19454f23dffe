"""Pretraining on plain text: what is learnt, and that it is learnt."""

import dataclasses
import json

import pytest

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.errors import ConfigError
from rl_jax.stages import context as contexts
from rl_jax.stages import pretrain

SAID = "Start with 1, plus 2, minus 3, times 4.\n"
CHANGES = {
    "sft__steps": 8,
    "sft__optim__lr": 0.02,
    "sft__optim__warmup_steps": 0,
    "sft__eval__every": 4,
    "sft__checkpoint__every": 0,
    "sft__batch__row_tokens": 24,
    "sft__data__eval": "",
    "sft__data__held_out": "arithmetic",  # until it is replaced
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(context, pieces that the loop was given, lines of metrics)"""
    folder = tmp_path_factory.mktemp("pretrain")
    names = {}
    for name, texts in (("train", [SAID * 3, SAID, "1"]), ("held_out", [SAID * 2])):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        names[f"sft__data__{name}"] = path
    with tiny.built(folder / "run", **CHANGES) as context:
        stage = context.run.stages[0]
        data = {name[11:]: str(path) for name, path in names.items()}
        stage = dataclasses.replace(
            stage, kind="pretrain", data=dataclasses.replace(stage.data, **data)
        )
        pretrain.run(context, stage, lambda: contexts.first_params(context))
        text = (folder / "run" / "sft" / "metrics.jsonl").read_text()
        yield context, [json.loads(line) for line in text.splitlines()]


def test_text_is_learnt(trained):
    _, lines = trained
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 8 and losses[-1] < losses[0] - 1
    held_out = [line["eval/loss"] for line in lines if "eval/loss" in line]
    assert len(held_out) == 3 and held_out[-1] < held_out[0] - 1


def test_a_token_is_predicted_once_an_epoch(trained):
    context, lines = trained
    text = context.tokenizer
    # As many predictions as there are tokens: not of the first, but of the end.
    of_each = [len(text.encode(said)) for said in (SAID * 3, SAID, "1")]
    pieces = sum(-(-count // 24) for count in of_each)
    last = lines[-1] if "train/epoch" in lines[-1] else lines[-2]
    epochs, tokens = last["train/epoch"], last["train/num_tokens"]
    assert epochs * pieces == pytest.approx(round(epochs * pieces))
    # The epoch that is begun may have its longest pieces first, or its shortest.
    assert int(epochs) * sum(of_each) <= tokens <= (int(epochs) + 1) * sum(of_each)


@pytest.mark.parametrize("name", ["train", "held_out"])
def test_a_task_without_demonstrations_cannot_be_learnt(name):
    config = configs.stage("pretrain")
    config.data.train = "arithmetic"
    config.data[name] = "word_problems"
    with pytest.raises(ConfigError, match=f"config.data.{name} names 'word_problems'"):
        configs.resolve(config)


def test_rows_of_a_step_are_whole_micro_batches():
    config = configs.stage("pretrain")
    config.data.train = "arithmetic"
    config.batch.rows_per_step = 6
    with pytest.raises(ConfigError, match="rows_per_step=6 is not a multiple"):
        configs.resolve(config)
