"""The kinds of stages: what each makes, and which keys it has."""

import dataclasses
from typing import Any, Literal

Makes = Literal["policy", "reward model", "data"]


@dataclasses.dataclass(frozen=True)
class KindOf:
    """What is the same for all stages of a kind.

    Attributes:
        makes: what later stages may take from it.
        left_out: keys, or groups of keys, that mean nothing for it.
        otherwise: defaults that it has otherwise.
    """

    makes: Makes
    left_out: tuple[str, ...]
    otherwise: dict[str, Any] = dataclasses.field(default_factory=dict)


# Groups of keys that only some kinds have.
_OWN = {
    "objective": ("rl",),
    "curriculum": ("rl",),
    "supervised": ("sft",),
    "preference": ("dpo",),
    "ranking": ("reward_model",),
    "distill": ("distill",),
    "select": ("select",),
    "curate": ("curate",),
    "merge": ("merge",),
}
_PAIRS = ("chosen_column", "rejected_column", "margin_column")
_DRAWN = ("rollout.prompts_per_step", "rollout.group_size")
_RL_REWARD = ("shuffle", "steps", "hidden", "hidden_gap")
_TRAINS = ("steps", "optim", "batch", "checkpoint", "log")


def _left_out(kind: str, *more: str) -> tuple[str, ...]:
    others = [group for group, kinds in _OWN.items() if kind not in kinds]
    return (*others, *more)


def _data(*names: str) -> tuple[str, ...]:
    return tuple(f"data.{name}" for name in names)


def _reward(*names: str) -> tuple[str, ...]:
    return tuple(f"reward.{name}" for name in names)


KINDS: dict[str, KindOf] = {
    "pretrain": KindOf(
        "policy",
        _left_out(
            "pretrain",
            *_data(*_PAIRS),
            *_DRAWN,
            *_reward("model", "model_weight", *_RL_REWARD),
            "batch.updates_per_step",
        ),
        {"optim.lr": 1e-4},
    ),
    "sft": KindOf(
        "policy",
        _left_out(
            "sft",
            *_data("text_column", *_PAIRS),
            *_DRAWN,
            *_reward("model", "model_weight", *_RL_REWARD),
            "batch.updates_per_step",
        ),
        {"optim.lr": 1e-5},
    ),
    "reward_model": KindOf(
        "reward model",
        _left_out(
            "reward_model",
            *_data("eval", "text_column", "answer_column", "answer_after"),
            *_data("completion_column", "weight_column", "wrong_share"),
            "rollout",
            "reward",
            "log",
            "batch.rows_per_step",
            "batch.updates_per_step",
            "eval.num_prompts",
            "eval.greedy",
            "eval.num_samples",
        ),
        {"optim.lr": 1e-5},
    ),
    "dpo": KindOf(
        "policy",
        _left_out(
            "dpo",
            *_data("text_column", "completion_column", "weight_column"),
            *_data("margin_column", "wrong_share"),
            *_DRAWN,
            *_reward("model", "model_weight", *_RL_REWARD),
            "batch.rows_per_step",
            "batch.updates_per_step",
        ),
        {"optim.lr": 5e-7},
    ),
    "rl": KindOf(
        "policy",
        _left_out(
            "rl",
            *_data("held_out", "completion_column", "text_column", "weight_column"),
            *_data("wrong_share", *_PAIRS),
            "batch.rows_per_step",
        ),
    ),
    "distill": KindOf(
        "policy",
        _left_out(
            "distill",
            *_data("held_out", "text_column", "weight_column", *_PAIRS),
            *_reward("model", "model_weight", *_RL_REWARD),
        ),
        {"rollout.group_size": 1},
    ),
    "select": KindOf(
        "data",
        _left_out(
            "select",
            *_data("eval", "held_out", "completion_column", "text_column"),
            *_data("weight_column", "wrong_share", *_PAIRS),
            "eval",
            *_reward(*_RL_REWARD),
            *_TRAINS,
        ),
        # A chunk, saved when all of its replies are there: several times the slots.
        {"rollout.prompts_per_step": 64},
    ),
    "curate": KindOf(
        "data",
        _left_out(
            "curate",
            *_data("eval", "held_out", "text_column", "weight_column", "wrong_share"),
            *_data(*_PAIRS),
            "eval",
            *_reward("model", "model_weight", *_RL_REWARD),
            *_TRAINS,
        ),
        # A chunk, saved when all of its replies are there: several times the slots.
        {"rollout.prompts_per_step": 64},
    ),
    "merge": KindOf(
        "policy",
        _left_out(
            "merge",
            "init",
            *_data("train", "held_out", "completion_column", "text_column"),
            *_data("weight_column", "wrong_share", "num_problems", *_PAIRS),
            *_DRAWN,
            *_reward("model", "model_weight", *_RL_REWARD),
            "eval.every",
            *_TRAINS,
        ),
    ),
}
