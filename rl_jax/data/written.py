"""Rows as values for a .jsonl file, from which rows.py reads them as they were."""

from collections.abc import Sequence
from typing import Any

from rl_jax.data import shapes
from rl_jax.data.columns import maybe_json
from rl_jax.data.rows import Preference, Row

# Columns that would be taken for what is written under other names.
_TAKEN = {
    *shapes.PROMPTS,
    "input",
    "system",
    "completion",
    "output",
    "chosen",
    "rejected",
    "replies",
    "scores",
    "ranks",
    "margin",
    "ground_truth",
    "answer",
    "data_source",
    "tools",
    "chat_template_kwargs",
}


def problem(row: Row) -> dict[str, Any]:
    """A row whose last turn is to be answered."""
    return {"prompt": list(row.messages), **_rest(row)}


def conversation(row: Row, reply: str | None = None) -> dict[str, Any]:
    """A row with its turns, and with a reply of the assistant if one is given."""
    added = [] if reply is None else [_said(reply)]
    return {"messages": [*row.messages, *added], **_rest(row)}


def pair(row: Row, chosen: str, rejected: str, margin: float) -> dict[str, Any]:
    """A better and a worse reply to a row; `margin` says by how much."""
    replies = {"chosen": [_said(chosen)], "rejected": [_said(rejected)]}
    return {**problem(row), **replies, "margin": margin}


def preference(row: Preference) -> dict[str, Any]:
    """A pair that was read."""
    turns = {
        "prompt": list(row.prompt),
        "chosen": list(row.chosen),
        "rejected": list(row.rejected),
    }
    return {**turns, **_about(row)}


def ranking(row: Row, replies: Sequence[str], scores: Sequence[float]) -> dict:
    """Several replies to a row with their scores.

    A reply is its text, or one turn where the text would be read as anything else: if
    it is blank, or itself says a list of turns.
    """
    turns = [
        text if text.strip() and isinstance(maybe_json(text), str) else [_said(text)]
        for text in replies
    ]
    return {**problem(row), "replies": turns, "scores": list(scores)}


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _rest(row: Row) -> dict[str, Any]:
    rest = _about(row)
    if not row.answer:
        return rest
    # Several are a list; so is one that would itself be read as a list of answers.
    plain = len(row.answers) == 1 and not row.answer.lstrip().startswith("[")
    answer = row.answer if plain else list(row.answers)
    gold = rest.get("reward_model")
    if isinstance(gold, dict) and "ground_truth" in gold:
        # Read before `answer`; it may hold more than the answer (data.answer_after).
        rest["reward_model"] = {**gold, "ground_truth": answer}
    return {"answer": answer, **rest}


def _about(row: Row | Preference) -> dict[str, Any]:
    about: dict[str, Any] = {"data_source": row.data_source}
    if row.tools:
        about["tools"] = row.tools
    if row.variables:
        about["chat_template_kwargs"] = row.variables
    return about | {k: v for k, v in row.extra.items() if k not in _TAKEN}
