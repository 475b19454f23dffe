"""How often a model solves each row, from a column or from samples that were graded."""

from typing import Any

from rl_jax.data.columns import lookup, maybe_json
from rl_jax.data.files import Record, records
from rl_jax.errors import ConfigError

Rates = dict[tuple[str, str], float]
"""("prompt", text) or ("id", id) -> share of right samples."""


def from_samples(path: str, *, instruction: str = "") -> Rates:
    """Pass rates by a file of graded samples.

    Such files are samples/*.jsonl of a run, --out of an evaluation, which name the
    prompt, and --out of a grading, which names the id. A sample is right if its verdict
    is `correct`; without a verdict, if its score is above 0. Samples that nobody could
    judge (a null score) do not count.

    Args:
        instruction: that the run put after each prompt, with an empty line between.

    Raises:
        ConfigError: if the file holds no such samples.
    """
    right: dict[tuple[str, str], list[bool]] = {}
    for record in records(path):
        values = record.values
        name = next((name for name in ("prompt", "id") if name in values), "")
        if not name or not {"verdict", "score"} & values.keys():
            if "model" in values:  # the last line of an evaluation: its result
                continue
            raise ConfigError(
                f"{record.where} is no graded sample: it has "
                f"{', '.join(values) or 'nothing'}.\n"
                "Expected prompt (or id) and verdict (or score), as evaluate, grade "
                "and a run's samples folder write them."
            )
        if "score" in values and values["score"] is None:
            continue
        text = str(values[name])
        if name == "prompt" and instruction:
            text = text.removesuffix(f"\n\n{instruction}")
        is_right = (
            values["verdict"] == "correct"
            if "verdict" in values
            else values["score"] > 0
        )
        right.setdefault((name, text), []).append(is_right)
    return {key: sum(found) / len(found) for key, found in right.items()}


def rate_of(record: Record, asked: str, rates: Rates) -> float | None:
    """A row's pass rate by what was asked last, or by its id; None if unknown."""
    if ("prompt", asked) in rates:
        return rates["prompt", asked]
    return rates.get(("id", str(record.values.get("id", record.number))))


def from_column(record: Record, column: str) -> float | None:
    """The pass rate that a column holds: a share, or a list of right and wrong.

    Raises:
        ConfigError: if it holds something else.
    """
    try:
        value: Any = lookup(record, column)
    except KeyError:
        return None
    if value is None:
        return None
    found = maybe_json(value)
    found = found if isinstance(found, list) else [found]
    if all(isinstance(x, int | float) and 0 <= x <= 1 for x in found):
        if found and not isinstance(value, bool):
            return sum(found) / len(found)
    raise ConfigError(
        f"{record.where}: column {column!r} holds {str(value)[:40]!r}.\n"
        "Expected a share from 0 to 1, or a list of 0 and 1."
    )
