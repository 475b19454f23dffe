r"""Chooses the rows of a data set that are worth training on.

python -m rl_jax.curate --data=train.jsonl --out=curated.jsonl --against=test.jsonl
python -m rl_jax.curate --data=a.jsonl,b.parquet --out=curated.jsonl \
    --samples=pool.jsonl --min_pass_rate=0.05 --max_pass_rate=0.625

In this order, each row is left out for the first reason that holds:

    exact duplicate   the same text as an earlier row
    near duplicate    nearly the same, by runs of tokens (data/duplicates.py)
    contaminated      it holds a prompt of --against (data/contamination.py)
    too easy, hard    its pass rate lies outside of the bounds
    no pass rate      with --unrated=drop

What is kept is written as it was, in order, to a .jsonl file that the trainer reads;
beside it a .stats.json says what was left out and why.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence

from rl_jax import command_line
from rl_jax.data import curation, pass_rates, sources
from rl_jax.data.curation import Removed
from rl_jax.data.entries import Entry, entry, written
from rl_jax.data.files import data_files, records
from rl_jax.data.lines import json_text, write_lines, write_text
from rl_jax.errors import ConfigError


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.curate",
        description="Leaves out duplicates, what a model will be tested on, and what "
        "is too easy or too hard.",
    )
    add = parser.add_argument
    add("--data", required=True, help="files, globs or folders, with commas between")
    add("--out", required=True, help="the .jsonl file to write")
    add("--stats", help="the statistics (default: --out with .stats.json)")
    add("--removed", help="write which rows were left out, and why, here (.jsonl)")
    add(
        "--by",
        choices=("prompt", "row"),
        default="prompt",
        help="what makes rows duplicates: the same prompt (default), or also the same "
        "replies",
    )
    add(
        "--near",
        type=float,
        default=0.8,
        help="share of runs in common from which rows are near duplicates (default "
        "0.8; 0: only exact ones are left out)",
    )
    add("--near_ngram", type=int, default=5, help="tokens in such a run (default 5)")
    add(
        "--ignore_figures",
        action="store_true",
        help="rows that differ in their numbers may be near duplicates too",
    )
    add("--against", help="held-out files: what holds one of their prompts is left out")
    add(
        "--ngram", type=int, default=8, help="tokens in a run for --against (default 8)"
    )
    add(
        "--overlap",
        type=float,
        default=0.5,
        help="share of a held-out prompt's tokens in such runs from which it counts as "
        "found (default 0.5; 0: any run)",
    )
    add("--pass_rate", metavar="COLUMN", help="column with the row's pass rate")
    add("--samples", help="graded samples, to take pass rates from")
    add("--min_pass_rate", type=float, default=0.0, help="least to keep (default 0)")
    add("--max_pass_rate", type=float, default=1.0, help="most to keep (default 1)")
    add("--unrated", choices=("keep", "drop"), help="what to do without a pass rate")
    add("--instruction", default="", help="that the samples' run put after each prompt")
    add("--prompt_column", default="", help="or several: the first that a row has")
    add("--completion_column", default="")
    add("--answer_column", default="")
    add("--against_prompt_column", help="(default: --prompt_column)")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Curates and prints a table; returns the exit code."""
    args = arguments(argv)
    _check(args)
    try:
        return _curate(args)
    except ConfigError as error:
        # The readers of data name the keys of a config.
        text = str(error).replace("--config.data.", "--")
        text = text.replace("--config.--", "--").replace("config.--", "--")
        raise ConfigError(text) from error


def _curate(args: argparse.Namespace) -> int:
    paths = _paths(args.data, "--data")
    read = {path: _entries(path, args, args.prompt_column) for path in paths}
    entries = [one for found in read.values() for one in found]
    removed: dict[int, Removed] = {}
    conflicts = curation.leave_out_duplicates(
        entries,
        removed,
        by=args.by,
        near=args.near,
        near_ngram=args.near_ngram,
        same_figures=not args.ignore_figures,
    )
    held_out = {}
    if args.against:
        column = args.against_prompt_column
        column = args.prompt_column if column is None else column
        tests = _paths(args.against, "--against")
        held_out = curation.leave_out_contaminated(
            entries,
            removed,
            [test for path in tests for test in _entries(path, args, column)],
            ngram=args.ngram,
            overlap=args.overlap,
        )
    rates = _rates(entries, removed, args)
    curation.leave_out_by_pass_rate(
        entries,
        removed,
        rates,
        low=args.min_pass_rate,
        high=args.max_pass_rate,
        drop_unrated=args.unrated == "drop",
    )
    if args.removed:
        write_lines(args.removed, curation.reasons(entries, removed))
    kept = [i for i in range(len(entries)) if i not in removed]
    counts = curation.counted(removed)
    if not kept:
        most = max(counts, key=lambda reason: counts[reason])
        raise ConfigError(
            f"Nothing is left of {len(entries)} rows: {counts[most]} are left out as "
            f"{most!r}.\n{args.out} was not written.\n"
            "Look at them with --removed=FILE, and choose other bounds."
        )
    lines = []
    for i in kept:
        values = written(entries[i].record)
        if args.samples and rates[i] is not None:
            values = values | {"pass_rate": rates[i]}
        lines.append(values)
    write_lines(args.out, lines)
    statistics = curation.statistics(
        read,
        removed,
        rates,
        conflicts=conflicts,
        held_out=held_out,
        settings=vars(args),
    )
    stats = args.stats or f"{args.out.removesuffix('.jsonl')}.stats.json"
    write_text(stats, [json_text(statistics, indent=1), "\n"])
    print("\n".join(curation.table(statistics)))
    print(f"wrote             {args.out}, {stats}")
    return 0


def _rates(
    entries: Sequence[Entry], removed: Mapping[int, Removed], args: argparse.Namespace
) -> list[float | None]:
    """The pass rate of every row, None where it has none.

    Raises:
        ConfigError: if rows have none and nothing is said about such rows.
    """
    if args.samples:
        known = pass_rates.from_samples(args.samples, instruction=args.instruction)
        rates = [pass_rates.rate_of(e.record, e.asked, known) for e in entries]
    elif args.pass_rate:
        rates = [pass_rates.from_column(e.record, args.pass_rate) for e in entries]
    else:
        return [None] * len(entries)
    unrated = [i for i, r in enumerate(rates) if r is None and i not in removed]
    if unrated and not args.unrated:
        raise ConfigError(
            f"{len(unrated)} of {len(entries) - len(removed)} rows have no pass rate, "
            f"the first of them {entries[unrated[0]].record.where}.\n"
            "Write --unrated=keep or --unrated=drop"
        )
    return rates


def _check(args: argparse.Namespace) -> None:
    def refuse(name: str, expected: str) -> None:
        raise ConfigError(f"--{name}={getattr(args, name)}.\nExpected {expected}.")

    for name in ("near", "overlap", "min_pass_rate", "max_pass_rate"):
        if not 0 <= getattr(args, name) <= 1:
            refuse(name, "a share from 0 to 1")
    for name in ("ngram", "near_ngram"):
        if getattr(args, name) < 1:
            refuse(name, "1 token or more")
    if args.min_pass_rate > args.max_pass_rate:
        refuse("min_pass_rate", f"at most --max_pass_rate={args.max_pass_rate:g}")
    rated = args.pass_rate or args.samples
    if args.pass_rate and args.samples:
        raise ConfigError(
            "--pass_rate and --samples are both given.\n"
            "Expected one of them: where the pass rates come from."
        )
    if not rated and (args.min_pass_rate > 0 or args.max_pass_rate < 1):
        raise ConfigError(
            "There are bounds of the pass rate, and nothing to take it from.\n"
            "Write --pass_rate=COLUMN, or --samples=FILE of graded samples."
        )
    if not args.out.endswith(".jsonl"):
        refuse("out", "a name that ends in .jsonl")
    for name in ("out", "stats", "removed"):
        path = getattr(args, name)
        if path and not pathlib.Path(path).expanduser().absolute().parent.is_dir():
            refuse(name, "a file in a folder that exists")


def _paths(text: str, flag: str) -> list[str]:
    """The paths that a flag names, with commas between."""
    found = sources.parse(text, flag)
    for source in found:
        if source.weight is not None or source.path in sources.BUILT_IN:
            raise ConfigError(
                f"{flag} names {source.path!r}"
                + (
                    " with a share"
                    if source.weight is not None
                    else ", a built-in task"
                )
                + ".\nExpected files, globs or folders, with commas between."
            )
    return [source.path for source in found]


def _entries(path: str, args: argparse.Namespace, columns: str) -> list[Entry]:
    """Rows of a path; its prompts stand in the first of some columns."""
    out = pathlib.Path(args.out).expanduser()
    if any(file.absolute() == out.absolute() for file in data_files(path)):
        raise ConfigError(
            f"--out={args.out} is one of the files to be read.\nWrite to another one."
        )
    names = columns.split(",")
    found = []
    for record in records(path):
        name = next((name for name in names if name in record.values), names[0])
        found.append(
            entry(
                record,
                prompt_column=name,
                completion_column=args.completion_column,
                answer_column=args.answer_column,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
