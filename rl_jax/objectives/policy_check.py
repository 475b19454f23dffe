"""What a policy loss must satisfy, checked before anything is compiled."""

import math

from rl_jax.errors import ConfigError
from rl_jax.kernels.advantage import (  # pyright: ignore[reportMissingImports]
    CENTRES,
    SCALES,
)
from rl_jax.objectives import aggregate, kl, returns, surrogate
from rl_jax.objectives.checking import check_name, check_number
from rl_jax.objectives.correction import CORRECTIONS
from rl_jax.objectives.policy_spec import PolicyLoss

KL_PLACES = ("loss", "reward", "return")
DENOMINATORS = ("old", "sampler")

NAMES: dict[str, tuple[str, ...]] = {
    "centre": CENTRES,
    "scale": SCALES,
    "whiten": returns.WHITENS,
    "surrogate": tuple(surrogate.SURROGATES),
    "denominator": DENOMINATORS,
    "ratio": tuple(surrogate.RATIOS),
    "aggregate": aggregate.MODES,
    "kl": kl.KINDS,
    "kl_place": KL_PLACES,
    "correction": tuple(CORRECTIONS),
}

# Field: (smallest, largest, a usual value). With a clip_high of 10 and more only the
# upper bound still acts; the first stage of R1 was trained so, hence no ceiling.
_NUMBERS = {
    "eps": (0.0, math.inf, 1e-6),
    "clip_low": (0.0, math.inf, 0.2),
    "clip_high": (0.0, math.inf, 0.2),
    "ratio_floor": (0.0, 1.0, 0.0),
    "ratio_cap": (0.0, math.inf, 3.0),
    "tau": (0.0, math.inf, 1.0),
    "tau_negative": (0.0, math.inf, 1.05),
    "kl_coef": (0.0, math.inf, 0.001),
    "sampler_low": (0.0, math.inf, 0.5),
    "sampler_cap": (0.0, math.inf, 2.0),
    "off_policy_delta": (0.0, math.inf, 0.5),
    "entropy_coef": (-math.inf, math.inf, 0.0),
    "overlong_buffer": (0.0, 1.0, 0.2),
}


def validate(spec: PolicyLoss) -> None:
    """Checks names and numbers, and that none of them is without effect.

    Raises:
        ConfigError: (a ValueError) with the field, its value and what may stand there.
    """
    for field, names in NAMES.items():
        check_name(field, "objective", getattr(spec, field), names)
    for field, (low, high, usual) in _NUMBERS.items():
        value = getattr(spec, field)
        check_number(field, "objective", value, low, high, usual=usual)
    if not isinstance(spec.dynamic_sampling, bool):
        raise ConfigError(
            f"dynamic_sampling of the objective is {spec.dynamic_sampling!r}.\n"
            "Expected True or False."
        )
    _check_combinations(spec)


def _check_combinations(spec: PolicyLoss) -> None:
    if spec.denominator == "sampler" and spec.sampler_cap:
        raise ConfigError(
            f"sampler_cap of the objective is {spec.sampler_cap}, its denominator "
            "'sampler'.\nThat ratio corrects for the sampler already: expected only "
            "one of the two.\nWrite sampler_cap=0.0 or denominator='old'."
        )
    correcting = spec.correction != "truncate" or spec.sampler_low
    if correcting and not spec.sampler_cap > spec.sampler_low:
        raise ConfigError(
            f"sampler_cap of the objective is {spec.sampler_cap}, with correction="
            f"{spec.correction!r} and sampler_low={spec.sampler_low}.\n"
            "Expected a cap above both sampler_low and 0, or no correction at all.\n"
            "Write for example sampler_cap=2.0."
        )
    if 0 < spec.ratio_cap <= 1 or (spec.surrogate == "capped" and not spec.ratio_cap):
        raise ConfigError(
            f"ratio_cap of the objective is {spec.ratio_cap}, its surrogate "
            f"{spec.surrogate!r}.\nExpected more than 1 (or 0, no cap, except under "
            "'capped').\nWrite for example ratio_cap=5.0."
        )
    if bool(spec.tau) != (spec.surrogate in surrogate.WITH_TAU):
        raise ConfigError(
            f"tau of the objective is {spec.tau}, its surrogate {spec.surrogate!r}.\n"
            f"Expected more than 0 under {', '.join(surrogate.WITH_TAU)}, else 0.\n"
            "Write for example tau=0.0 or another surrogate."
        )
    if bool(spec.tau_negative) != (spec.surrogate == "sapo"):
        raise ConfigError(
            f"tau_negative of the objective is {spec.tau_negative}, its surrogate "
            f"{spec.surrogate!r}.\nExpected more than 0 under 'sapo', else 0.\n"
            "Write for example tau_negative=1.05 or 0.0."
        )
    if spec.kl_place != "loss" and spec.kl not in kl.ESTIMATORS:
        raise ConfigError(
            f"kl of the objective is {spec.kl!r}, its place the {spec.kl_place}.\n"
            f"Expected one of {', '.join(kl.ESTIMATORS)} there: it has no gradient.\n"
            "Write for example kl='k1'."
        )
