"""The programs that run inside the sandbox, put together from files of this package.

There is no rl_jax in there. So each is one text: the files it is made of one after the
other, without the lines that import them from one another.
"""

import functools
import pathlib
import re
from collections.abc import Sequence

_FOLDER = pathlib.Path(__file__).resolve().parent
_PARTS = {
    "program": ("plain", "channel", "program_side"),
    "tests": (
        "plain",
        "channel",
        "numpy_side",
        "proxies",
        "assert_text",
        "assert_side",
    ),
    "checker": ("channel", "checker_side"),
}
_OURS = re.compile(r"^from rl_jax\.[\w.]+ import (?:\([^)]*\)|[^\n(]*)\n", re.MULTILINE)


@functools.cache
def source(side: str) -> str:
    """The text of one side: "program", "tests" or "checker"."""
    texts = [(_FOLDER / f"{name}.py").read_text() for name in _PARTS[side]]
    return _OURS.sub("", "\n".join(texts)) + "\nmain()\n"


_WHOLE = """
def _program(texts):
    import sys
    sys.set_int_max_str_digits(0)
    first = None
    for text in texts:
        try:
            return compile(text, "program.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            first = first or error
    raise first
exec(_program({texts}))
"""


def whole_program(preamble: str, texts: Sequence[str]) -> str:
    """A program that is the first of the texts that compiles, after the preamble."""
    return f"{preamble}\n{_WHOLE.format(texts=repr(list(texts)))}"
