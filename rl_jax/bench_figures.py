"""A measured figure with what it should reach, and a table of them."""

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One line of the table. `target` is a bound from below unless `at_most`."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """True if there is no target, or the figure is on its right side."""
        if self.target is None:
            return True
        if self.at_most:
            return self.value <= self.target
        return self.value >= self.target


def table(figures: Sequence[Figure]) -> str:
    """The figures as text, each with its target and whether that is reached."""
    lines = [f"{'':<46}{'measured':>10}  {'target':>9}"]
    for figure in figures:
        line = f"{figure.name:<46}{figure.value:>10.4g}  "
        if figure.target is not None:
            bound = f"{'<=' if figure.at_most else '>='} {figure.target:g}"
            line += f"{bound:>9}  {'ok' if figure.reached else 'MISSED'}"
        lines.append(f"{line.rstrip()}  {figure.unit}".rstrip())
    return "\n".join(lines)
