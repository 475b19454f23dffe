"""As much of numpy as EvalPlus' tests use, where the sandbox has none.

They compare floats by `np.allclose` and ask whether a result is an array, which nothing
that arrives as plain data is.

Part of what runs inside the sandbox: standard library only.
"""

import math
import sys
import types
from typing import Any


class _Array:
    """Stands where numpy has its array type: nothing is one."""


def _allclose(one: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """|one - other| <= atol + rtol * |other| for all, as numpy has it.

    Source: numpy.allclose. One number is compared with each of a sequence.

    Raises:
        TypeError: something is no number.
        ValueError: sequences of different lengths.
    """
    deep = [isinstance(value, (list, tuple)) for value in (one, other)]
    if deep == [True, True]:
        return all(_allclose(a, b, rtol, atol) for a, b in zip(one, other, strict=True))
    if deep[0]:
        return all(_allclose(item, other, rtol, atol) for item in one)
    if deep[1]:
        return all(_allclose(one, item, rtol, atol) for item in other)
    if one == other:
        return True  # infinities too
    return abs(one - other) <= atol + rtol * abs(other)


def install_numpy() -> None:
    """Puts the stand-in where `import numpy` finds it, unless there is a real one."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        module = types.ModuleType("numpy")
        vars(module).update(
            ndarray=_Array,
            float32=type("float32", (), {}),
            float64=type("float64", (), {}),
            allclose=_allclose,
            isclose=_allclose,
            isnan=math.isnan,
            isinf=math.isinf,
            inf=math.inf,
            nan=math.nan,
            pi=math.pi,
        )
        sys.modules["numpy"] = module
