"""Recipes: finding them, and loading one with its faults told in three lines."""

import ast
import glob
import os
import sys
import traceback
import warnings

from absl import flags
from ml_collections import config_flags

from rl_jax import config as defaults
from rl_jax import schema
from rl_jax.errors import ConfigError


def shipped() -> dict[str, str]:
    """Path -> first line of the docstring, for the recipes in ./configs."""
    recipes: dict[str, str] = {}
    for path in sorted(glob.glob("configs/**/*.py", recursive=True)):
        try:
            with open(path, encoding="utf-8") as file:
                docstring = ast.get_docstring(ast.parse(file.read())) or ""
        except (SyntaxError, ValueError, OSError):
            docstring = "cannot be read"
        recipes[path] = docstring.partition("\n")[0]
    return recipes


def load(path: str) -> schema.Tree:
    """The locked config that a recipe makes.

    Args:
        path: FILE, or FILE:ARGUMENT for a `get_config(argument)`.

    Raises:
        ConfigError: if there is no such file, or it raises, or makes no config of ours.
    """
    file, _, argument = path.partition(":")
    if not os.path.isfile(file):
        raise _missing_error(path)
    # config_flags would load into the module of the recipe loaded before.
    sys.modules.pop("config_config", None)
    flag_values = flags.FlagValues()
    words = [f"--config={path}"]
    holder = config_flags.DEFINE_config_file(
        "config", flag_values=flag_values, sys_argv=words
    )
    try:
        with warnings.catch_warnings():
            # ml_collections 1.1.0 loads by a method that Python 3.12 warns of.
            warnings.filterwarnings("ignore", r"the load_module\(\) method")
            flag_values(["recipe", *words])
    except Exception as error:
        raise _recipe_error(file, argument, error) from error
    config = holder.value
    # config_flags keeps an OSError in place of the config, to raise it on first use.
    if isinstance(error := getattr(config, "_error", None), OSError):
        raise _recipe_error(file, argument, error) from error
    table = defaults.tree_keys(defaults.kinds_of(config))
    schema.check_names(schema.leaves(config), table)
    return config


def _missing_error(path: str) -> ConfigError:
    file, colon, argument = path.partition(":")
    folder = os.path.dirname(file)
    known = [*shipped(), *glob.glob(os.path.join(glob.escape(folder), "*.py"))]
    stems = {os.path.splitext(os.path.basename(name))[0]: name for name in known}
    stem = os.path.splitext(os.path.basename(file.rstrip("/")))[0]
    near = [stems[name] for name in schema.nearest(stem, stems)] or list(shipped())[:2]
    fault = "is a folder" if os.path.isdir(file) else "does not exist"
    writes = " or ".join(f"`--config={name}{colon}{argument}`" for name in near)
    return ConfigError(
        f"--config={path}: the file {file!r} {fault}.\n"
        + (f"Write {writes}." if near else "Write the path of a recipe, a .py file.")
    )


def _recipe_error(file: str, argument: str, error: BaseException) -> ConfigError:
    """The fault of a recipe with its file and line, whatever was wrapped around it."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    for found in chain:
        if isinstance(found, SyntaxError) and found.filename == file:
            return _located(file, found.lineno or 0, found.text or "", found)
        frames = traceback.extract_tb(found.__traceback__)
        own = [frame for frame in frames if frame.filename == file]
        if own:
            return _located(file, own[-1].lineno or 0, own[-1].line or "", found)
    last = chain[-1]
    if isinstance(last, AttributeError) and last.name == "get_config":
        return ConfigError(
            f"{file} has no get_config(), so it is not a recipe.\n"
            "Write one that returns rl_jax.config.stage('rl') with some keys set."
        )
    if isinstance(last, TypeError) and "get_config()" in str(last):
        if argument:
            fault, write = "takes no argument, got {argument!r}", file
        else:
            fault, write = "needs an argument behind a colon", f"{file}:ARGUMENT"
        return ConfigError(
            f"{file} {fault.format(argument=argument)}.\nWrite `--config={write}`."
        )
    return _located(file, 0, "", last)


def _located(file: str, line: int, source: str, error: BaseException) -> ConfigError:
    where = f"{file}, line {line}" if line else file
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {error}")
    if isinstance(error, SyntaxError):
        reason = str(error.msg)
    else:
        while error.args and isinstance(error.args[0], BaseException):
            error = error.args[0]  # ConfigDict wraps a KeyError in an AttributeError
        reason = str(error.args[0]) if len(error.args) == 1 else str(error)
    # ConfigDict shows the whole tree, and then what may have been meant.
    first, *rest = reason.splitlines() or [""]
    first = first.partition(" since the config is locked")[0][:200]
    hints = [text for text in rest if text.startswith("Did you mean")]
    lines = [
        f"{where}: {type(error).__name__}: {first}",
        f"    {source.strip()}",
        *hints,
    ]
    return ConfigError("\n".join(text for text in lines if text.strip()))
