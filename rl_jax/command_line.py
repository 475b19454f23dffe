"""The command line of the trainer, strict and readable.

    python -m rl_jax.train --config=FILE[:ARG] --workdir=DIR [--config.KEY=VALUE ...]
    python -m rl_jax.train --config=FILE[:ARG] --inspect_data [--config.KEY=VALUE ...]
    ... --only=STAGE or --from=STAGE, of a chain

Loading a recipe and setting its keys is left to ml_collections' config_flags, on flags
of our own that clash with nobody's. Around it: nothing is ignored, the order is free,
and every fault is a `ConfigError` that says what to write instead.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import config_path

from rl_jax import config as defaults
from rl_jax import config_text, processes, recipe, schema
from rl_jax.config_text import describe as describe
from rl_jax.config_text import to_json as to_json
from rl_jax.errors import ConfigError

CONFIG_ERROR_CODE = 2  # schedulers are told not to retry on it
TERMINATION_LOG = "/dev/termination-log"  # Kubernetes shows its text for a dead pod
FLAGS = ("config", "workdir", "inspect_data", "only", "from", "help")
HELP = ("help", "h", "helpfull", "helpshort")
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True}
BOOLEANS |= {"false": False, "no": False, "off": False, "0": False}


class CommandLine(NamedTuple):
    """What a command line asks for."""

    config: schema.Tree  # locked, overrides done
    workdir: str  # absolute, or a URL such as gs://bucket/run; "" only to inspect data
    overrides: list[str]  # "optim.lr=1e-06": each key once, the last value given
    inspect_data: bool = False  # show some rows instead of training
    only: str = ""  # the one stage of a chain to run
    start: str = ""  # --from: the first stage of a chain to run


def parse(argv: Sequence[str]) -> CommandLine:
    """Reads the words behind the program's name; --help prints and exits with 0.

    Raises:
        ConfigError: for the first fault. Values are checked one by one; whether they go
            together is for `rl_jax.config.resolve` to say.
    """
    settings, strays = _split(argv)
    given = dict(settings)
    path = given.get("config")
    config = recipe.load(path) if path else None
    if "help" in given:
        print(config_text.usage(config))
        raise SystemExit(0)
    table = defaults.tree_keys(defaults.kinds_of(config) if config else "rl")
    if strays:
        raise _stray_error(strays[0], table)
    for name, text in settings:
        if name not in FLAGS and not name.startswith("config."):
            raise ConfigError(
                f"--{name} is not a flag; expected --config, --workdir or "
                f"--config.KEY=VALUE.\n{_meant(name, text, table)}"
            )
    if config is None or not path:
        raise ConfigError(
            f"--config is missing: the recipe to run. {config_text.shipped_line()}\n"
            f"Write `{config_text.COMMAND} --config=FILE --workdir=DIR`."
        )
    values: dict[str, Any] = {}
    for name, text in settings:
        if name.startswith("config."):
            key = name.removeprefix("config.")
            values.pop(key, None)  # the last one counts, and keeps its place
            values[key] = _override_value(key, text, table, config)
    workdir, inspect_data = given.get("workdir"), _inspect_data(given)
    if not workdir and not inspect_data:
        raise ConfigError(
            "--workdir is missing: the folder for checkpoints, metrics and samples.\n"
            f"Write `{config_text.COMMAND} --config={path} --workdir=DIR`."
        )
    config = _apply(config, values)
    idle = [key for key in values if key in defaults.MODEL_SIZES]
    if idle and config.model.path:
        raise ConfigError(
            f"--config.{idle[0]} has no effect: the model in config.model.path="
            f"{config.model.path!r} has its own.\n"
            "Leave it out, or build a new model with `--config.model.path=`."
        )
    overrides = [f"{key}={schema.as_text(value)}" for key, value in values.items()]
    workdir = _absolute(workdir) if workdir else ""
    stages = [_stage_flag(name, given) for name in ("only", "from")]
    return CommandLine(config, workdir, overrides, inspect_data, *stages)


def _split(argv: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Words as (name, value) in order, and the words that belong to no flag.

    `--a=1`, `-a=1` and `--a 1` are the same; a flag without a value has None.
    """
    settings: list[tuple[str, str | None]] = []
    strays: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not re.match(r"--?[A-Za-z]", word):
            strays.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        if equals:
            settings.append((name, text))
        elif name in HELP:
            settings.append(("help", None))
        elif name == "inspect_data":  # never takes the next word
            settings.append((name, None))
        elif match := re.fullmatch(r"no-?(config\..+)", name):
            settings.append((match[1], "false"))
        elif words and not re.match(r"--?[A-Za-z]", words[0]):
            settings.append((name, words.pop(0)))
        else:
            settings.append((name, None))
    return settings, strays


def _inspect_data(given: Mapping[str, str | None]) -> bool:
    """Whether --inspect_data was given, bare or with a word for true."""
    text = given.get("inspect_data", "false")
    if text is not None and text.lower() not in BOOLEANS:
        raise ConfigError(
            f"--inspect_data is {text!r}, expected true or false.\n"
            "Write `--inspect_data`."
        )
    return text is None or BOOLEANS[text.lower()]


def _stage_flag(name: str, given: Mapping[str, str | None]) -> str:
    """The stage that --only or --from names; "" if it was not given."""
    text = given.get(name, "")
    if text is None or (name in given and not text):
        raise ConfigError(
            f"--{name} has no value, expected the name of a stage.\n"
            f"Write e.g. `--{name}=rl`."
        )
    return text


def _stray_error(word: str, table: Mapping[str, schema.Key]) -> ConfigError:
    """The error of a word that stands alone."""
    fault = f"{word!r} belongs to no flag: every setting starts with two dashes."
    bare = word.lstrip("-\N{EN DASH}\N{EM DASH}")  # as word processors write dashes
    name, equals, text = bare.partition("=")
    if equals:
        return ConfigError(f"{fault}\n{_meant(name, text, table)}")
    if word.endswith(".py"):
        return ConfigError(f"{fault}\nWrite `--config={word}`.")
    return ConfigError(f"{fault}\nA value with spaces in it needs quotes around it.")


def _meant(name: str, text: str | None, table: Mapping[str, schema.Key]) -> str:
    """A line with the flags that may have been meant by `name`, with their value."""
    near = schema.nearest(name, [*FLAGS, *(f"config.{key}" for key in table)])
    if not near:
        return "--help lists all flags and keys."
    return f"Did you mean {_typed(near, text)}?"


def _typed(names: Iterable[str], text: str | None) -> str:
    """Flags as they are typed, in backquotes, each with the same value."""
    value = "" if text is None else f"={schema.quoted(text)}"
    return " or ".join(f"`--{name}{value}`" for name in names)


def _override_value(
    key: str,
    text: str | None,
    table: Mapping[str, schema.Key],
    config: schema.Tree,
) -> Any:
    """The value that an override gives to a key of the config."""
    kinds = defaults.kinds_of(config)
    own = [f"{name}.kind" for name in kinds] if isinstance(kinds, dict) else ["kind"]
    if key in own:
        raise ConfigError(
            f"--config.{key} cannot be changed: it decides which keys there are.\n"
            "Take a recipe of that kind: --help lists those in ./configs."
        )
    if key not in table:
        inside = [path for path in table if path.startswith(f"{key}.")]
        if inside:
            raise ConfigError(
                f"--config.{key} is a group of keys, which are set one by one.\n"
                f"Write e.g. {_typed([f'config.{inside[0]}'], text)}."
            )
        near = schema.nearest(key, table)
        hint = f"Did you mean {_typed([f'config.{path}' for path in near], text)}?"
        raise ConfigError(
            f"--config.{key} is not a key of this config.\n"
            + (hint if near else "--help lists all keys.")
        )
    if text is None and table[key].value_type is bool:
        return True
    try:
        if text is None:
            raise ValueError("no value")
        return parsed(table[key], text)
    except ValueError:
        example = config_path.get_value(key, config)
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            if table[key].value_type is int and float(text or "").is_integer():
                example = int(float(text or ""))
        found = "has no value" if text is None else f"is {text!r}"
        raise ConfigError(
            f"--config.{key} {found}, expected {table[key].expected}.\n"
            f"Write e.g. {schema.override(key, example)} ({table[key].comment})."
        ) from None


def parsed(key: schema.Key, text: str) -> Any:
    """Text as a value of the key's type; ValueError if it is not written as one."""
    if key.optional and text.lower() in ("none", "null") and text not in key.choices:
        return None
    if key.value_type is tuple:
        inner = text.strip().removeprefix("(").removesuffix(")").rstrip(",")
        words = [word.strip().strip("\"'") for word in inner.split(",") if inner]
        return tuple(_scalar(key.item_type, word) for word in words)
    return _scalar(key.value_type, text)


def _scalar(kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError(text)
        return BOOLEANS[text.lower()]
    if kind is str:
        # No shell expands ~ behind an equals sign.
        return os.path.expanduser(text) if text.startswith("~/") else text
    return kind(text)


def _apply(config: schema.Tree, values: Mapping[str, Any]) -> schema.Tree:
    """A copy of the config with keys set, by config_flags."""
    words = [
        f"--config.{key}={value if type(value) is tuple else schema.as_text(value)}"
        for key, value in values.items()
        if value is not None
    ]
    flag_values = flags.FlagValues()
    holder = config_flags.DEFINE_config_dict(
        "config", config, flag_values=flag_values, sys_argv=words
    )
    try:
        flag_values([config_text.COMMAND, *words])
    except flags.Error as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    for key, value in values.items():
        if value is None:  # which no flag can spell
            config_path.set_value(key, holder.value, None)
    return holder.value


def _absolute(workdir: str) -> str:
    """The folder's absolute path; orbax takes no other."""
    if "://" in workdir:
        raise ConfigError(
            f"--workdir is {workdir!r}, an address; expected a folder.\n"
            "Mount the bucket (gcsfuse, NFS), the same on every host, and write e.g. "
            "`--workdir=/mnt/runs/a`."
        )
    path = os.path.abspath(os.path.expanduser(workdir))
    if os.path.isfile(path):
        raise ConfigError(
            f"--workdir is {workdir!r}, which is a file; expected a folder.\n"
            f"Write e.g. `--workdir={schema.quoted(workdir + '_run')}`."
        )
    return path


def exit_on_config_error(
    fn: Callable[[Sequence[str]], int | None], argv: Sequence[str]
) -> int:
    """Runs `fn(argv)` and returns its exit code (None: 0); 2 for a ConfigError.

    The error is printed as `error: ...`, at most three lines, without a traceback, and
    left where Kubernetes looks for the reason of an exit.
    """
    try:
        return fn(argv) or 0
    except ConfigError as error:
        text = "error: " + "\n".join(str(error).splitlines()[:3])
        print(text, file=sys.stderr)
        # A log that cannot be written must not hide the message printed above.
        with contextlib.suppress(OSError):
            if os.path.exists(TERMINATION_LOG):
                with open(TERMINATION_LOG, "w", encoding="utf-8") as log:
                    log.write(text + "\n")
        return CONFIG_ERROR_CODE
    except processes.ProcessTimeout as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
