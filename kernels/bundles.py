"""Cycles of a Pallas kernel, counted in what the TPU compiler schedules for it.

With `LIBTPU_INIT_ARGS="--xla_jf_dump_to=FOLDER --xla_jf_dump_llo_text=true"` libtpu
writes each kernel's instruction bundles, one a cycle, empty ones (the core waits for a
matrix unit, say) included. A loop's bundles count as often as it runs: branches back
and the constants that end them are in the text. What the text cannot say is not
counted: copies that come late, memory conflicts. So this is a lower bound.

Format as of libtpu 0.0.42 and 0.0.50.
"""

import dataclasses
import pathlib
import re

# Bundles after a branch that run before it takes effect.
_DELAY_SLOTS = 5

_FILE = re.compile(r"\d+-(?P<name>\w[\w.]*?)(\.\d+)?-\d+-packed-bundles-post-ra\.txt")
_BUNDLE = re.compile(r"\s*(?P<address>0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*: [> ]*\{")
_BRANCH = re.compile(r"sbr\.rel \((!?)%(?P<test>\w+)\) target bundleno = (?P<to>\d+)")
_LESS = r"%{} = scmp\.ge\.s32\.totalorder %(?P<counter>\w+), (?P<bound>\d+)"
_STEP = r"%{} = sadd\.s32 (?P<step>\d+), "


@dataclasses.dataclass
class Loop:
    """Bundles from `first` to `last`, run `trips` times; or a whole kernel, once.

    Attributes:
        bundles, matmuls: of one trip, without those of inner loops.
    """

    first: int
    last: int
    trips: int
    bundles: int = 0
    matmuls: int = 0
    inner: list["Loop"] = dataclasses.field(default_factory=list)

    @property
    def multiplies(self) -> bool:
        """True if a matrix unit is used, here or in an inner loop."""
        return self.matmuls > 0 or any(loop.multiplies for loop in self.inner)

    def cycles(self, rare: int = 1) -> float:
        """Cycles of all trips.

        Args:
            rare: inner loops without a matmul, which clear and hand over tiles, run in
                one of so many trips.
        """
        inner = sum(
            loop.cycles(rare) / (1 if loop.multiplies else rare) for loop in self.inner
        )
        return self.trips * (self.bundles + inner)


def kernels(folder: pathlib.Path, prefix: str) -> dict[str, Loop]:
    """Each kernel whose name begins with `prefix`, by name, from a folder of dumps."""
    found = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and match["name"].startswith(prefix):
            found[match["name"]] = parse(path.read_text())
    return found


def parse(text: str) -> Loop:
    """The loops of one kernel.

    Raises:
        ValueError: for a loop that no constant ends.
    """
    bundles: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := _BUNDLE.match(line):
            bundles.append((int(match["address"], 16), line))
    loops = []
    for address, line in bundles:
        for branch in _BRANCH.finditer(line):
            first = int(branch["to"])
            if first <= address:
                body = [x for at, x in bundles if first <= at <= address]
                trips = _trips("\n".join(body), branch["test"])
                loops.append(Loop(first, address + _DELAY_SLOTS, trips))
    whole = Loop(bundles[0][0], bundles[-1][0], 1)
    # Outer loops before the inner ones that they hold.
    loops.sort(key=lambda loop: (loop.first, -loop.last))
    for i, loop in enumerate(loops):
        holders = [x for x in loops[:i] if x.last >= loop.last]
        (holders[-1] if holders else whole).inner.append(loop)
    for address, line in bundles:
        holders = [x for x in loops if x.first <= address <= x.last]
        loop = holders[-1] if holders else whole
        loop.bundles += 1
        loop.matmuls += line.count(" = vmatmul")
    return whole


def _trips(body, test):
    """A loop goes back unless its counter has reached a constant."""
    less = re.search(_LESS.format(test), body)
    if less is None:
        raise ValueError(f"no constant ends the loop whose test is {test}")
    step = re.search(_STEP.format(less["counter"]), body)
    return -(-int(less["bound"]) // (int(step["step"]) if step else 1))
