"""Errors that a person can act on."""


class ConfigError(ValueError):
    """The run cannot start as asked: exit code 2, and a retry will not help.

    The message has at most three lines: what was wrong and the value found, what
    was expected, and what to write instead.
    """
