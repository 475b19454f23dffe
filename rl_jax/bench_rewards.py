"""The speed of rewards: maths against the bare library, programs in the sandbox.

No round has an answer in common with another, so that no cache helps.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_jax.bench_figures import Figure
from rl_jax.errors import ConfigError
from rl_jax.rewards import RewardPool, Score

# (gold, answer): both as a data set and a model write them.
Pair = tuple[str, str]
_LONG = (16_000, 64_000)  # characters of a long reply
_SENTENCE = "We look at the next pair $a_{%d}$ and see that nothing changes. "


def figures(rounds: int, answers: int, programs: int) -> list[Figure]:
    """All of them, with that many answers and programs in each round."""
    return [*maths_figures(rounds, answers), *sandbox_figures(rounds, programs)]


def pairs(count: int, seed: int) -> list[Pair]:
    """Answers as maths data has them, two in three of them right.

    Half are integers; the rest fractions, surds, intervals, sets, points, polynomials
    and multiples of pi.
    """
    rng = random.Random(seed)
    makers: list[Callable[[random.Random], tuple[str, str, str]]] = [
        *[_integer] * 7,
        *(_fraction, _surd, _interval, _set, _point, _polynomial, _angle),
    ]
    found: list[Pair] = []
    for i in range(count):
        gold, right, wrong = makers[i % len(makers)](rng)
        found.append((gold, wrong if i % 3 == 2 else right))
    return found


def _integer(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(2, 100_000)
    return str(n), rng.choice([str(n), f"{n:,}", f"x={n}"]), str(n + 1)


def _fraction(rng: random.Random) -> tuple[str, str, str]:
    a, b, k = rng.randrange(1, 99), rng.randrange(2, 99), rng.randrange(2, 9)
    gold = rf"\frac{{{a}}}{{{b}}}"
    return gold, rf"\dfrac{{{a * k}}}{{{b * k}}}", rf"\frac{{{a + b}}}{{{b}}}"


def _surd(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randrange(2, 99), rng.choice([2, 3, 5, 6, 7, 10, 11, 13])
    return rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{b}\sqrt{{{a}}}"


def _interval(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randrange(-99, 0), rng.randrange(1, 99)
    return f"({a},{b}]", rf"\left({a}, {b}\right]", f"[{a},{b}]"


def _set(rng: random.Random) -> tuple[str, str, str]:
    a, b, c = rng.sample(range(-99, 99), 3)
    return rf"\{{{a},{b},{c}\}}", f"{c}, {a}, {b}", f"{a}, {b}"


def _point(rng: random.Random) -> tuple[str, str, str]:
    a, b, c = rng.randrange(1, 99), rng.randrange(2, 9), rng.randrange(-99, -1)
    gold = rf"\left(\frac{{{a}}}{{{b}}},{c}\right)"
    return gold, f"({a}/{b}, {c})", f"({c}, {a}/{b})"


def _polynomial(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randrange(1, 20), rng.randrange(1, 20)
    expanded = f"x^2+{a + b}x+{a * b}"
    return expanded, f"(x+{a})(x+{b})", f"(x-{a})(x+{b})"


def _angle(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randrange(1, 30), rng.randrange(2, 30)
    return rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{b}", rf"\frac{{{b}\pi}}{{{a + b}}}"


def replies(asked: Sequence[Pair], length: int = 0) -> list[str]:
    """Whole replies that end in the boxed answer, of about `length` characters."""
    filler = "".join(_SENTENCE % i for i in range(length // len(_SENTENCE) + 1))
    before = filler[:length] if length else ""
    return [rf"{before}So the answer is $\boxed{{{answer}}}$." for _, answer in asked]


def bare_rate(asked: Sequence[Pair], texts: Sequence[str]) -> float:
    """Replies a second of math-verify in this process, with its own time limits."""
    import math_verify

    start = time.perf_counter()
    for (gold, _), text in zip(asked, texts, strict=True):
        reference = math_verify.parse(rf"\boxed{{{gold}}}")
        math_verify.verify(reference, math_verify.parse(text))
    return len(texts) / (time.perf_counter() - start)


def pool_rate(
    pool: RewardPool, asked: Sequence[Pair], texts: Sequence[str]
) -> tuple[float, list[Score]]:
    """Replies a second of a pool that is ready, and their scores in order."""
    start = time.perf_counter()
    scores = dict[int, Score]()
    for i, ((gold, _), text) in enumerate(zip(asked, texts, strict=True)):
        pool.submit(i, {"prompt": "", "completion": text, "answer": gold})
    while len(scores) < len(texts):
        scores.update(pool.wait(at_least=pool.pending))
    rate = len(texts) / (time.perf_counter() - start)
    return rate, [scores[i] for i in range(len(texts))]


def maths_figures(rounds: int, count: int) -> list[Figure]:
    """The maths reward through its pool, against the library that it is built on."""
    found: dict[str, list[float]] = {}
    with _maths_pool(1) as one, _maths_pool(2) as two:
        bare_rate(pairs(30, -1), replies(pairs(30, -1)))  # imports and fills caches
        for number in range(rounds):
            for name, value in _maths_round(one, two, count, number):
                found.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in found.items()}
    figures = [
        Figure("math-verify alone, short replies", medians["bare"], "replies/s"),
        Figure("maths reward, 1 worker", medians["one"], "replies/s"),
        Figure("maths reward, 2 workers", medians["two"], "replies/s"),
        Figure("  1 worker / the library alone", medians["speed"], "x", 0.9),
        Figure("  2 workers / 1 worker", medians["scaling"], "x", 1.7),
    ]
    for length, target in zip(_LONG, (3.0, 8.0), strict=True):
        name = f"  the same, replies of {length:,} characters"
        figures.append(Figure(name, medians[f"long/{length}"], "x", target))
    wrong = medians["mistakes"]
    figures.append(Figure("answers judged otherwise than they were made", wrong, ""))
    return figures


def _maths_pool(num_workers: int) -> RewardPool:
    return RewardPool(["maths"], [1.0], num_workers=num_workers, timeout_secs=20.0)


def _maths_round(
    one: RewardPool, two: RewardPool, count: int, number: int
) -> Iterator[tuple[str, float]]:
    for pool in (one, two):  # every worker, until the same work takes no longer
        _settle(pool)
    asked = pairs(count, 3 * number)
    texts = replies(asked)
    bare = bare_rate(asked, texts)
    rate, scores = pool_rate(one, asked, texts)
    fresh = pairs(4 * count, 3 * number + 1)
    first, _ = pool_rate(one, fresh, replies(fresh))
    fresh = pairs(4 * count, 3 * number + 2)
    both, _ = pool_rate(two, fresh, replies(fresh))
    expected = [float(i % 3 != 2) for i in range(count)]
    mistakes = sum(s.value != e for s, e in zip(scores, expected, strict=True))
    yield from (("bare", bare), ("one", rate), ("two", both), ("speed", rate / bare))
    yield from (("scaling", both / first), ("mistakes", mistakes))
    for length in _LONG:
        few = pairs(max(count // 4, 14), 1000 * number + length)
        texts = replies(few, length)
        bare = bare_rate(few, texts)
        rate, _ = pool_rate(one, few, texts)
        yield f"long/{length}", rate / bare


def _settle(pool: RewardPool) -> None:
    """Keeps a pool busy for a moment, so that all its workers are warm."""
    asked = pairs(60, 77_777)
    pool_rate(pool, asked, replies(asked))


def sandbox_figures(rounds: int, count: int) -> list[Figure]:
    """What the sandbox adds to a program that does nothing, and how many it runs."""
    try:
        from rl_jax.rewards.sandbox import Sandbox

        with Sandbox() as box:
            print(f"isolation    {box.level}")
            for _ in range(3):
                box.run("pass")
            return _program_figures(box, rounds, count)
    except (ImportError, ConfigError) as error:
        print(f"sandbox      not measured: {' '.join(str(error).split())}")
        return []


def _program_figures(box: Any, rounds: int, count: int) -> list[Figure]:
    python = [sys.executable, "-I", "-S", "-c", "pass"]
    overheads, rates = [], []
    for _ in range(rounds):
        plain = [
            _secs(lambda: subprocess.run(python, check=True)) for _ in range(count)
        ]
        boxed = [_secs(lambda: box.run("pass")) for _ in range(count)]
        overheads.append(statistics.median(boxed) - statistics.median(plain))
        rates.append(count / sum(boxed))
    extra = 1000 * statistics.median(overheads)
    return [
        Figure(
            "sandbox, beyond a bare python", extra, "ms/program", 60.0, at_most=True
        ),
        Figure("trivial programs, 1 at a time", statistics.median(rates), "1/s", 15.0),
    ]


def _secs(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
