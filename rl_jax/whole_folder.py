"""A folder that appears whole or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from rl_jax.errors import ConfigError


def check_free(folder: str | os.PathLike) -> None:
    """Raises ConfigError if there is something in `folder`, or it is a file."""
    path = pathlib.Path(folder).expanduser()
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        what = "is not empty" if path.is_dir() else "is a file"
        raise ConfigError(
            f"{path} {what}; nothing is overwritten there.\n"
            "Name a folder that does not exist yet, or delete this one first."
        )


@contextlib.contextmanager
def written_whole(
    folder: str | os.PathLike, *, replace: bool = False
) -> Iterator[pathlib.Path]:
    """A folder to fill, which becomes `folder` at the end if nothing was raised.

    Until then it is NAME.unfinished, beside it; what an interrupted call left there is
    deleted first.

    Args:
        replace: if `folder` holds something, delete that at the end.

    Raises:
        ConfigError: if it holds something and is not to be replaced.
    """
    # Behind a link, so that the link stays and the disk is that of its target.
    folder = pathlib.Path(folder).expanduser().resolve()
    if not replace:
        check_free(folder)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    old = folder.with_name(f"{folder.name}.old")
    for path in (unfinished, old):
        shutil.rmtree(path, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if folder.exists():
            folder.rename(old)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
