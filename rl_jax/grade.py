r"""Grades replies from the command line: to try a reward before paying for a run.

python -m rl_jax.grade --data=IN.jsonl --out=OUT.jsonl
python -m rl_jax.grade --data=IN.jsonl --out=OUT.jsonl --function=maths+format@0.1

A row of the data has `completion`, and what it is judged by: `answer`, or `tests` for
programs; and, where they matter, `prompt`, `id`, `data_source`, `truncated` and further
columns. The function is chosen by `data_source`: math, gsm8k, multiple_choice, exact,
code and others that rewards/routing.py lists. A row without one is taken for `code` if
it has tests, else for `math`.

The out file has a row for each, in order: id, score, verdict, extracted, seconds,
detail. With a column `expected` (true, false, a score, a verdict or a list of these)
the rows that came out otherwise are printed.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax import command_line
from rl_jax.data import fields
from rl_jax.data.columns import maybe_json
from rl_jax.data.files import Record, records
from rl_jax.data.messages import text_of, turns
from rl_jax.errors import ConfigError
from rl_jax.rewards import RewardPool, Score, registry, routing
from rl_jax.rewards.code.isolation import tested
from rl_jax.rewards.sandbox import LEVELS

_SAME = 1e-9  # of a score and an expected one


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.grade",
        description="Grades the replies of a file and says which came out otherwise "
        "than its column `expected` has it.",
    )
    add = parser.add_argument
    add("--data", required=True, help=".jsonl or .parquet: a file, a glob, a folder")
    add("--out", required=True, help="file to write: a JSON line for each row")
    add(
        "--function",
        metavar="NAME",
        help="judges every row, whatever its data_source: "
        f"{', '.join(registry.BUILT_IN)}, FILE.py:FUNCTION, or several as in "
        "maths+format@0.1",
    )
    add(
        "--route",
        action="append",
        default=[],
        metavar="SOURCE=NAME",
        help="a function for a data source, or for all that begin with PREFIX*; before "
        "those that are built in; may be given again",
    )
    add(
        "--option",
        action="append",
        default=[],
        metavar="FUNCTION.NAME=VALUE",
        help="an option of one function, as in repetition.ngram=4; may be given again",
    )
    add(
        "--answer_format",
        choices=registry.ANSWER_FORMATS,
        default="boxed",
        help="where an answer is sought (default: boxed)",
    )
    add("--format_pattern", default="", help="regular expression that `format` wants")
    add("--timeout", type=float, default=5.0, help="seconds for a reply (default: 5)")
    add("--workers", type=int, default=2, help="replies at a time (default: 2)")
    add(
        "--isolation",
        choices=LEVELS,
        default="namespaces",
        help="the least that will do for programs (default: namespaces)",
    )
    add("--show", type=int, default=10, help="disagreements to print (default: 10)")
    return parser.parse_args(argv)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row to be graded: its job, and what it carries along."""

    where: str
    id: Any
    job: dict[str, Any]
    expected: Any = None


def main(argv: Sequence[str]) -> int:
    """Grades a file; returns the exit code."""
    args = arguments(argv)
    routes = _routes(args)
    options = {
        "answer_format": args.answer_format,
        "format_pattern": args.format_pattern,
        **registry.parse_options(args.option, "--option"),
    }
    out = pathlib.Path(args.out).expanduser()
    if not out.parent.is_dir():
        raise ConfigError(
            f"--out is {args.out!r}, in a folder that does not exist.\n"
            f"Make the folder {out.parent}, or write to another."
        )
    rows = [row_of(record) for record in records(args.data)]
    used = set()
    for row in rows:
        source = row.job["data_source"]
        routing.check_source(routes, source, where=row.where, key="--route")
        used.add(routing.find(routes, source))
    # Only what some row needs is loaded; and a sandbox only for programs.
    routes = tuple(route for route in routes if route in used)
    if "code" in routing.functions_of(routes):
        options["code"] = {"isolation": args.isolation}
        print(tested(args.isolation))
    start = time.perf_counter()
    with RewardPool(
        routes=routes,
        num_workers=args.workers,
        timeout_secs=args.timeout,
        options=options,
    ) as pool:
        scores = _grade(pool, rows, out)
        stats = pool.stats()
    seconds = time.perf_counter() - start
    print(f"graded       {len(rows):,} rows in {seconds:.1f} s, written to {args.out}")
    print(summary(scores))
    if stats["last_error"]:
        print(f"last fault   {stats['last_error']}")
    _print_disagreements(rows, scores, args.show)
    return 0


def _routes(args: argparse.Namespace) -> tuple[routing.Route, ...]:
    if args.function:
        if args.route:
            raise ConfigError(
                "--function judges every row, so that --route has no effect.\n"
                f"Leave one of them out, or write --route='*={args.function}'."
            )
        return routing.parse([f"*={args.function}"], "--function")
    return routing.parse([*args.route, "built_in"], "--route")


def row_of(record: Record) -> Row:
    """A row of the data as a job for the reward functions.

    Raises:
        ConfigError: it has no completion, or one that is no text.
    """
    values = record.values
    if "completion" not in values:
        raise ConfigError(
            f"{record.where}: there is no column 'completion'; it has "
            f"{', '.join(values) or 'none'}.\n"
            "Expected the reply in 'completion', and 'answer' or 'tests' beside it."
        )
    answers, _ = fields.answers(record)
    given = ("completion", "prompt", "answer", "id", "expected", "data_source")
    source = fields.source(record) or ("code" if "tests" in values else "math")
    num_tokens = values.get("num_tokens")
    job = {
        "prompt": _text(values.get("prompt") or "", record, "prompt"),
        "completion": _text(values["completion"], record, "completion"),
        "answer": answers[0] if answers else "",
        "answers": list(answers),
        "row": {key: value for key, value in values.items() if key not in given},
        # Without a tokenizer, words stand in for tokens.
        "num_tokens": num_tokens or len(str(values["completion"]).split()),
        "truncated": bool(values.get("truncated", False)),
        "data_source": source,
    }
    name = values.get("id", record.number)
    return Row(record.where, name, job, values.get("expected"))


def _text(value: Any, record: Record, column: str) -> str:
    """A column as text: a string, or messages, of which prompts may have several."""
    if isinstance(value, list):
        return "\n".join(map(text_of, turns(value, record, column)))
    if not isinstance(value, str):
        raise ConfigError(
            f"{record.where}: column {column!r} is {value!r:.60}.\n"
            "Expected a string, or a list of messages."
        )
    return value


def _grade(
    pool: RewardPool, rows: Sequence[Row], out: pathlib.Path
) -> dict[int, Score]:
    """Scores by index; each is written as soon as all before it are there."""
    for i, row in enumerate(rows):
        pool.submit(i, row.job)
    scores: dict[int, Score] = {}
    num_written = 0
    with open(out, "w", encoding="utf-8", errors="backslashreplace") as file:
        while num_written < len(rows):
            scores.update(pool.wait())
            while num_written in scores:
                line = result(rows[num_written], scores[num_written])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                num_written += 1
    return scores


def result(row: Row, score: Score) -> dict[str, Any]:
    """A row of the out file."""
    return {
        "id": row.id,
        "score": score.value,
        "verdict": str(score.verdict),
        "extracted": score.answer,
        "seconds": round(score.seconds, 6),
        "detail": score.detail,
        **({"parts": score.parts} if len(score.parts) > 1 else {}),
    }


def summary(scores: Mapping[int, Score]) -> str:
    """A table: how often each verdict came, its mean score and its time."""
    groups: dict[str, list[Score]] = collections.defaultdict(list)
    for score in scores.values():
        groups[str(score.verdict)].append(score)
    lines = [
        f"{'verdict':<18}{'rows':>7}{'share':>8}{'score':>8}{'mean s':>9}{'max s':>8}"
    ]
    for name, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        values = [score.value for score in group if score.value is not None]
        mean = f"{sum(values) / len(values):.3f}" if values else "none"
        secs = [score.seconds for score in group]
        lines.append(
            f"{name:<18}{len(group):>7}{len(group) / len(scores):>8.1%}{mean:>8}"
            f"{sum(secs) / len(secs):>9.4f}{max(secs):>8.3f}"
        )
    return "\n".join(lines)


def agrees(score: Score, expected: Any) -> bool:
    """True if a score is what was expected.

    expected: true or false (above 0 or not), a number (the score itself), null (no
    score), "pass" or "fail", the name of a verdict, or a list of any of these.
    """
    expected = maybe_json(expected)
    if isinstance(expected, list):
        return any(agrees(score, one) for one in expected)
    if isinstance(expected, str) and expected.lower() in ("pass", "fail"):
        expected = expected.lower() == "pass"
    if isinstance(expected, bool):
        return (score.value is not None and score.value > 0) == expected
    if isinstance(expected, int | float):
        return score.value is not None and abs(score.value - expected) < _SAME
    return expected == str(score.verdict)


def _print_disagreements(
    rows: Sequence[Row], scores: Mapping[int, Score], show: int
) -> None:
    expecting = [i for i, row in enumerate(rows) if row.expected is not None]
    if not expecting:
        return
    other = [i for i in expecting if not agrees(scores[i], rows[i].expected)]
    print(f"as expected  {len(expecting) - len(other):,} of {len(expecting):,}")
    for i in other[:show]:
        score = scores[i]
        print(
            f"  {rows[i].id}: expected {rows[i].expected!r}, got {score.verdict} "
            f"({score.value}); answer {rows[i].job['answer'][:60]!r}, extracted "
            f"{score.answer[:60]!r}" + (f"; {score.detail}" if score.detail else "")
        )
    if len(other) > show:
        print(f"  and {len(other) - show:,} more; --show={len(other)} shows all")


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
