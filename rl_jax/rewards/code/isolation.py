"""How far programs are kept apart on this machine, found out before they are run."""

from rl_jax.rewards import sandbox


def tested(isolation: str) -> str:
    """Runs the canaries of the sandbox; one line that says what holds.

    Args:
        isolation: the least that will do, as in `CodeOptions`.

    Raises:
        ConfigError: this machine allows less, or a canary got out.
    """
    with sandbox.Sandbox(isolation) as box:
        report = sandbox.self_test(box)
    report.check()
    return f"isolation    {report.level}: {report.layers}"
