"""The toy tasks by name."""

from rl_jax.data.toys import (
    alphabets,
    brackets,
    calls,
    constraints,
    helpful,
    lookup,
    rpn,
    safety,
    search,
    sorting,
    sums,
    terminal,
)
from rl_jax.data.toys.task import Toy

TOYS: dict[str, Toy] = {
    "sums": Toy(sums.problem, sums.judge),
    "rpn": Toy(rpn.problem, rpn.judge),
    "brackets": Toy(brackets.problem, brackets.judge),
    "sorting": Toy(sorting.problem, sorting.judge),
    "lookup": Toy(lookup.problem, lookup.judge),
    "constraints": Toy(constraints.problem, constraints.judge),
    "helpful": Toy(helpful.problem, helpful.judge),
    "safety": Toy(safety.problem, safety.judge),
    "search": Toy(search.problem, search.judge),
    "terminal": Toy(terminal.problem, terminal.judge),
    "calls": Toy(calls.problem, calls.judge),
    "alphabets": Toy(alphabets.problem, alphabets.judge),
}
