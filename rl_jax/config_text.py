"""A config as text: the help page, the printed tree, JSON."""

import json
import textwrap
from collections.abc import Iterable

from rl_jax import config as defaults
from rl_jax import recipe, schema

COMMAND = "python -m rl_jax.train"
_NO_BREAK = "\N{NO-BREAK SPACE}"  # for a space inside a value, while lines are wrapped
WIDTH = 88
INDENT = 18  # columns of a group's name, at least
_MOST_IN_FULL = 2  # stages of a chain that are printed with every key


def describe(config: schema.Tree, overrides: Iterable[str] = ()) -> str:
    """The whole tree, one paragraph a group; `*` marks what the command line set.

    Sizes of the model are left out where a folder of weights brings its own. Of a
    chain of more than two stages only what is not a default is shown.

    Args:
        overrides: "optim.lr=1e-06" each, as `command_line.parse` gives them.
    """
    marked = {text.partition("=")[0] for text in overrides}
    values = schema.leaves(config)
    kinds = defaults.kinds_of(config)
    is_long = isinstance(kinds, dict) and len(kinds) > _MOST_IN_FULL
    groups: dict[str, list[str]] = {}
    for path, key in defaults.tree_keys(kinds).items():
        if values["model.path"] and path in defaults.MODEL_SIZES:
            continue
        group, _, name = path.rpartition(".")
        in_stage = is_long and path.partition(".")[0] in kinds
        always = path.partition(".")[2] in ("kind", "init")
        is_default = values[path] == key.default and not always
        if in_stage and is_default and path not in marked:
            continue
        mark = "*" if path in marked else ""
        text = schema.quoted(schema.as_text(values[path], key.choices))
        text = f"{mark}{name}={text}"
        groups.setdefault(group, []).append(text.replace(" ", _NO_BREAK))
    indent = max(INDENT, *(len(group) + 1 for group in groups))
    lines = [
        textwrap.fill(
            " ".join(words),
            width=WIDTH,
            initial_indent=f"{group or 'run':<{indent}}",
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for group, words in groups.items()
    ]
    lines = [line.replace(_NO_BREAK, " ") for line in lines]
    if is_long:
        lines.append("of each stage: what differs from its defaults (--help has all)")
    if marked:
        lines.append("* set on the command line")
    return "\n".join(lines)


def to_json(config: schema.Tree) -> str:
    """The whole tree as JSON, indented; tuples are lists, None is null."""
    return json.dumps(config.to_dict(), indent=2)


def shipped_line() -> str:
    """The recipes in ./configs, each with what it is for, as one line."""
    recipes = recipe.shipped()
    if not recipes:
        return "There is no folder configs/ here to choose from."
    return "Here: " + "; ".join(f"{path} ({text})" for path, text in recipes.items())


def usage(config: schema.Tree | None) -> str:
    """The help page: flags, recipes, and every key with its value and comment.

    Values are those of the config, or the defaults if there is none.
    """
    lines = [
        f"Usage: {COMMAND} --config=FILE[:ARGUMENT] --workdir=DIR",
        "           [--config.KEY=VALUE ...]",
        "",
        _entry("--config", "the recipe, a Python file with get_config()"),
        _entry(
            "--workdir",
            "folder for checkpoints, metrics and samples; one that was "
            "used before is taken up where it stopped",
        ),
        _entry("--config.KEY", "overrides a key of the recipe"),
        _entry(
            "--inspect_data",
            "shows rows with their tokens and what is learnt of them, and ends; "
            "--workdir is not needed",
        ),
        _entry("--only", "runs this stage of a chain alone, from what is there"),
        _entry("--from", "runs this stage of a chain and those after it"),
        "",
        "Recipes here:",
        *(_entry(path, text) for path, text in recipe.shipped().items()),
        "",
    ]
    if config is not None:
        values = schema.leaves(config)
        lines.append("Keys, with their values in this recipe:")
        for path, key in defaults.tree_keys(defaults.kinds_of(config)).items():
            lines.append(_key_entry(path, values[path], key))
        return "\n".join(lines)
    rl, sft = defaults.tree_keys("rl"), defaults.tree_keys("sft")
    lines.append(
        "Keys of kind rl, with their defaults (a chain puts a stage's name first):"
    )
    lines += [_key_entry(path, key.default, key) for path, key in rl.items()]
    lines += ["", "Keys of kind sft that rl has not, or has with another default:"]
    for path, key in sft.items():
        if path not in rl or rl[path].default != key.default:
            lines.append(_key_entry(path, key.default, key))
    return "\n".join(lines)


def _key_entry(path: str, value: object, key: schema.Key) -> str:
    choices = (
        f" [{', '.join(c or 'empty' for c in key.choices)}]" if key.choices else ""
    )
    text = f"--config.{path}={schema.quoted(schema.as_text(value, key.choices))}"
    return _entry(text, key.comment + choices)


def _entry(name: str, text: str) -> str:
    """A name and its explanation in two columns."""
    column = 42
    gap = " " * column
    first = f"  {name:<{column - 3}} " if len(name) < column - 2 else f"  {name}\n{gap}"
    body = textwrap.wrap(text, WIDTH - column) or [""]
    return (first + f"\n{gap}".join(body)).rstrip()
