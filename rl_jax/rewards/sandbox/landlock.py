"""Which files a process may touch, and nothing else it may reach: Landlock.

Works without any privilege, and stands by itself where namespaces are refused.

Source: landlock(7) and linux/landlock.h.
"""

import os
import struct
from collections.abc import Mapping

from rl_jax.rewards.sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
# All rights there are, by version: removing and making of every kind, then moving to
# another folder (2), truncating (3) and controlling devices (5).
_ALL_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 3  # TCP bind and connect
_SCOPE_VERSION, _SCOPES = 6, 3  # abstract sockets, signals
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 0x4000 | 0x8000

READ = _READ_FILE | _READ_DIR
LIST = _READ_DIR
DEVICE = _READ_FILE | _WRITE_FILE
WRITE = 0xFFFF & ~_EXECUTE

_PATH_BENEATH = 1
_VERSION_FLAG = 1


def version() -> int:
    """Of the kernel's Landlock; 0 if it has none or has it switched off."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def ruleset(paths: Mapping[str, int], *, abi: int) -> int:
    """A descriptor of rules that allow only this.

    Args:
        paths: existing file or folder -> rights below it. Rights that this version
            does not know are not restricted by it either.

    Raises:
        OSError: a path is not there, or the kernel refuses.
    """
    handled = _ALL_RIGHTS[max(known for known in _ALL_RIGHTS if known <= abi)]
    network = _NETWORK_RIGHTS if abi >= _NETWORK_VERSION else 0
    scopes = _SCOPES if abi >= _SCOPE_VERSION else 0
    size = 24 if scopes else 16 if network else 8
    attributes = struct.pack("=QQQ", handled, network, scopes)[:size]
    rules = kernel.call("landlock_create_ruleset", attributes, size, 0)
    try:
        for path, rights in paths.items():
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights & handled
                if not os.path.isdir(path):
                    allowed &= _FILE_RIGHTS
                rule = struct.pack("=Qi", allowed, fd)
                kernel.call("landlock_add_rule", rules, _PATH_BENEATH, rule, 0)
            finally:
                os.close(fd)
    except BaseException:
        os.close(rules)
        raise
    return rules


def restrict(rules: int) -> None:
    """Puts this process under the rules for good. Needs no_new_privs."""
    kernel.call("landlock_restrict_self", rules, 0)
