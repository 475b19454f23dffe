"""The rotary keys of config.json, to a base and a `RopeScaling`, and back.

transformers 4 wrote the base beside an object "rope_scaling"; transformers 5 writes
one object "rope_parameters", or in some families one for each kind of layer in it.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.models.families import FULL, SLIDING, Family
from rl_jax.models.spec import RopeScaling

# (key, value found, what is supported) -> the error to raise.
Fault = Callable[[str, Any, Any], ConfigError]
Rope = tuple[float, RopeScaling | None]  # base and scaling of some layers

# rope_type -> keys of its object, besides the base.
_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "truncate",
        "original_max_position_embeddings",
    ),
}
_KINDS = "one of " + ", ".join(f'"{kind}"' for kind in _KEYS)


def read_rope(
    config: Mapping[str, Any], family: Family, fault: Fault
) -> dict[str, Rope]:
    """Base and scaling of the layers of each kind: `FULL` and `SLIDING`.

    Args:
        config: with every key that the family reads.
    """
    old, new = config["rope_scaling"], config["rope_parameters"]
    default = family.rope_theta
    if family.sliding_theta is None:
        objects = {"rope_scaling": old, "rope_parameters": new}
        rope = _merged(config, "rope_theta", default, objects, fault)
        return {FULL: rope, SLIDING: rope}
    new = _object("rope_parameters", new, fault)
    for key in sorted(new.keys() - {FULL, SLIDING}):
        raise fault(f"rope_parameters.{key}", new[key], f'"{FULL}" and "{SLIDING}"')
    key, sliding_default = family.sliding_theta
    theta = config["rope_theta"]
    if key == "rope_theta" and not new and theta not in (None, sliding_default):
        logging.getLogger(__name__).warning(
            "config.json has rope_theta: %s and no rope_parameters. It is the base of "
            "all layers here, as in transformers 4; transformers 5 takes %s for those "
            "with a window.",
            theta,
            sliding_default,
        )
    names = {kind: f"rope_parameters.{kind}" for kind in (FULL, SLIDING)}
    full = {"rope_scaling": old, names[FULL]: new.get(FULL)}
    sliding = {names[SLIDING]: new.get(SLIDING)}
    rope = {
        FULL: _merged(config, "rope_theta", default, full, fault),
        SLIDING: _merged(config, key, sliding_default, sliding, fault),
    }
    for kind, (_, scaling) in rope.items():
        if scaling and not scaling.truncate:
            # transformers 5 looks for it beside the objects and finds it nowhere.
            raise fault(f"{names[kind]}.truncate", False, True)
    return rope


def _merged(
    config: Mapping[str, Any],
    key: str,
    default: float,
    objects: Mapping[str, Any],
    fault: Fault,
) -> Rope:
    """What `config[key]` and the objects, by name, say together; one may be absent."""
    theta, scaling = config[key], None
    if theta is not None:
        theta = positive(config, key, fault)
    for name, rope in objects.items():
        rope = _object(name, rope, fault)
        if not rope:
            continue
        own = rope.pop("rope_theta", theta)
        if theta is not None and own != theta:
            raise fault(f"{name}.rope_theta", own, f"{theta}, as beside it")
        theta = own
        found = _scaling(name, rope, config["max_position_embeddings"], fault)
        if scaling is not None and found != scaling:
            raise fault(name, rope, "what rope_scaling says")
        scaling = found
    theta = default if theta is None else theta
    return positive({"rope_theta": theta}, "rope_theta", fault), scaling


def _object(name: str, rope: Any, fault: Fault) -> dict[str, Any]:
    if rope is not None and not isinstance(rope, Mapping):
        raise fault(name, rope, "null or an object")
    return {key: value for key, value in (rope or {}).items() if value is not None}


def _scaling(
    name: str, rope: dict[str, Any], max_positions: Any, fault: Fault
) -> RopeScaling | None:
    kind = rope.pop("rope_type", rope.get("type", "default"))
    if rope.pop("type", kind) != kind or not isinstance(kind, str) or kind not in _KEYS:
        raise fault(f"{name}.rope_type", kind, _KINDS)
    part = rope.pop("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise fault(f"{name}.partial_rotary_factor", part, 1.0)
    for key in sorted(rope.keys() - set(_KEYS[kind])):
        raise fault(f"{name}.{key}", rope[key], None)
    if kind == "default":
        return None
    if max_positions is not None:
        rope = {"original_max_position_embeddings": max_positions, **rope}
    truncate = rope.pop("truncate", True)
    if not isinstance(truncate, bool):
        raise fault(f"{name}.truncate", truncate, "true or false")
    rope = {f"{name}.{key}": value for key, value in rope.items()}

    def number(key: str, default: float | None = None) -> float:
        key = f"{name}.{key}"
        return positive(rope if default is None else {key: default, **rope}, key, fault)

    factor = number("factor")
    if kind == "linear":
        return RopeScaling(kind, factor)
    original = int(number("original_max_position_embeddings"))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            wanted = f"above low_freq_factor, {low}"
            raise fault(f"{name}.high_freq_factor", high, wanted)
        return RopeScaling(
            kind, factor, original, low_freq_factor=low, high_freq_factor=high
        )
    fast, slow = number("beta_fast", 32.0), number("beta_slow", 1.0)
    if slow >= fast:
        raise fault(f"{name}.beta_fast", fast, f"above beta_slow, {slow}")
    return RopeScaling(
        kind,
        factor,
        original,
        beta_fast=fast,
        beta_slow=slow,
        # arXiv:2309.00071, equation 22.
        attention_factor=number(
            "attention_factor", 0.1 * math.log(max(factor, 1.0)) + 1.0
        ),
        truncate=truncate,
    )


def write_rope(rope: Mapping[str, Rope], family: Family) -> dict[str, Any]:
    """The keys that `read_rope` reads as the same; every transformers reads them."""
    theta, scaling = rope[FULL]
    if family.sliding_theta is None:
        return {"rope_theta": theta, "rope_scaling": _written(scaling)}
    keys: dict[str, Any] = {
        "rope_parameters": {
            kind: (_written(scaling) or {"rope_type": "default"})
            | {"rope_theta": theta}
            for kind, (theta, scaling) in rope.items()
        }
    }
    key, _ = family.sliding_theta
    if key != "rope_theta" or rope[SLIDING][0] == theta:
        keys |= {"rope_theta": theta, "rope_scaling": _written(scaling)}
        keys |= {key: rope[SLIDING][0]}
    return keys


def _written(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    renamed = {"original_max_position_embeddings": scaling.original_max_positions}
    return {
        "rope_type": scaling.kind,
        **{
            key: renamed[key] if key in renamed else getattr(scaling, key)
            for key in _KEYS[scaling.kind]
        },
    }


def positive(config: Mapping[str, Any], key: str, fault: Fault) -> float:
    """`config[key]` as a finite number above 0."""
    value = config.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 0 < value < math.inf:
            return float(value)
    raise fault(key, value, "a number above 0")
