"""Which collectives a program compiled for TPUs has, how large, and over which axes.

Read from `compiled.as_text()` of libtpu 0.0.42 and 0.0.50. What has to be known of it:

- A reduce-scatter is mostly printed as a fusion that calls `%all-reduce-scatter.N`,
  a computation of an all-reduce and the slice of it that this device keeps. It is one
  operation: the whole sum is never in memory.
- An asynchronous one is a chain of fusions, from `async-collective-start` to `-done`,
  and each computation of the chain repeats the collective under one `chain_id`.
- Slices talk by `send` and `recv`, through the hosts' network: each says what it is
  part of. Groups of all other collectives count the devices of one slice.
"""

import dataclasses
import math
import re
from collections import Counter

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1} | {
    "pred": 1
}
_OPERATION = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\(")
# Groups of devices in the four ways in which they are written.
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,]+\})")
_RESHAPED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[((?:'\w+'=\d+,?)+)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{((?:'\w+',?)+)\}"
)
_SENT = re.compile(r' = \((.*?), .* send\(.*_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, or many alike.

    Attributes:
        kind: of KINDS.
        axes: mesh axes that it goes over, joined by "+".
        num_bytes: of the whole array on one device: what comes out of an all-gather,
            what goes into a reduce-scatter.
        times: how often it runs; a loop that may end early counts as a full one.
    """

    kind: str
    axes: str
    num_bytes: int
    times: int


def arrays(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """(dtype, dimensions) of every array that is written in `text`."""
    found = re.findall(rf"\b({'|'.join(_BYTES)})\[([\d,]*)\]", text)
    return [(kind, tuple(map(int, filter(None, d.split(","))))) for kind, d in found]


def collectives(text: str, axes: dict[str, int], between: str = "") -> list[Collective]:
    """The collectives of a compiled program, in the order in which it names them.

    Args:
        axes: sizes of the mesh axes within a slice, in the order of the mesh.
        between: the axis across slices.

    Raises:
        ValueError: for groups of devices written in a way that is not known here.
    """
    parts, entry = _computations(text)
    found = []

    def inside(name: str) -> list[tuple[str, str]]:
        """(kind, line) of the collectives of a fusion's computation."""
        held = []
        for line in parts[name]:
            if match := _OPERATION.search(line):
                scatter = name.startswith("all-reduce-scatter")
                held.append(("scattered sum" if scatter else match[2], line))
            elif " fusion(" in line and (
                called := re.search(r"calls=%?([\w.-]+)", line)
            ):
                held += inside(called[1])
        return held

    def walk(name: str, times: int) -> None:
        for line in parts[name]:
            if loop := re.search(
                r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)", line
            ):
                trips = times * _trips(parts[loop[1]])
                walk(loop[1], trips)
                walk(loop[2], trips)
            elif match := _OPERATION.search(line):
                found.append(_collective(match[2], line, axes, times))
            elif sent := _SENT.search(line):
                kind = sent[2].lower().replace("_", "-")
                found.append(Collective(kind, between, _num_bytes(sent[1]), times))
            elif " fusion(" in line:
                called = re.search(r"calls=%?([\w.-]+)", line)
                starts = line.lstrip().startswith("%async-collective-start")
                for kind, held in inside(called[1]) if called else ():
                    if starts or "chain_id" not in held:
                        found.append(_collective(kind, held, axes, times))
            elif re.search(r" (?:call|conditional|async-start)\(", line):
                for called in re.findall(
                    r"(?:to_apply|calls|\w+_computations?)=\{?(%[^}\s]+)\}?", line
                ):
                    for one in re.findall(r"%([\w.-]+)", called):
                        walk(one, times)

    walk(entry, 1)
    return found


def total(found: list[Collective]) -> dict[str, int]:
    """Bytes by "kind axes", as "all-gather fsdp"."""
    summed: Counter[str] = Counter()
    for one in found:
        summed[f"{one.kind} {one.axes}"] += one.num_bytes * one.times
    return dict(summed)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of every computation, and the name of the one that is entered."""
    parts: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if start := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            lines = parts[start[2]] = []
            entry = start[2] if start[1] else entry
        elif line.startswith("  "):
            lines.append(line)
    return parts, entry


def _trips(condition: list[str]) -> int:
    """Of a loop that counts up to a constant; 1 if its condition has none."""
    bounds = re.findall(r" = s32\[\].*? constant\((\d+)\)", "\n".join(condition))
    return max(map(int, bounds), default=1)


def _collective(kind: str, line: str, axes: dict[str, int], times: int) -> Collective:
    match = _OPERATION.search(line)
    assert match is not None
    group = _group(line, math.prod(axes.values()))
    places = np.array(np.unravel_index(group, tuple(axes.values())))
    over = [name for name, at in zip(axes, places, strict=True) if len(set(at)) > 1]
    num_bytes = _num_bytes(match[1])
    if match[3] and kind != "all-reduce":  # operand and result, in a tuple
        sizes = [
            _num_bytes(f"{k}[{','.join(map(str, d))}]") for k, d in arrays(match[1])
        ]
        num_bytes = max(sizes)
    if kind == "reduce-scatter":
        num_bytes *= len(group)
    kind = "reduce-scatter" if kind == "scattered sum" else kind
    return Collective(kind, "+".join(over), num_bytes, times)


def _num_bytes(text: str) -> int:
    return sum(_BYTES[kind] * math.prod(dims) for kind, dims in arrays(text))


def _group(line: str, num_devices: int) -> list[int]:
    """Devices of the first group of a collective."""
    if match := _LISTED.search(line):
        return [int(x) for x in re.findall(r"\d+", match[1])]
    if match := _RESHAPED.search(line):
        ids = _ids(num_devices, match[2], match[3])
        return ids.reshape(-1, int(match[1]))[0].tolist()
    if match := _MESH.search(line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        ids = _ids(num_devices, match[2], match[3])
        ids = ids.reshape([int(x) for x in sizes.values()])
        over = re.findall(r"\w+", match[4])
        first = tuple(slice(None) if name in over else 0 for name in sizes)
        return ids[first].reshape(-1).tolist()
    raise ValueError(f"no groups of devices that can be read: {line[:400]}")


def _ids(num_devices: int, dims: str | None, order: str | None) -> np.ndarray:
    """0, 1, ... in these dimensions, transposed."""
    ids = np.arange(num_devices)
    if dims:
        ids = ids.reshape([int(x) for x in dims.split(",")])
    return ids.transpose([int(x) for x in order.split(",")]) if order else ids
