"""ScaleRL's curve: what a score tends to as compute grows, fitted with intervals.

Pure NumPy. Reading runs is in scaling_runs.py, the command in scaling.py.

Legend: N points of a run, Z fits made at once (resamples of the points), Q unknowns of
a fit: start, ceiling, log steepness, log midpoint. U shapes on the first grid.

Source: The Art of Scaling Reinforcement Learning Compute for LLMs (ScaleRL,
arXiv:2510.13786): its curve, and its procedure of fitting.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

MIN_SPARE_POINTS = 2  # more points than unknowns: below that noise cannot be told
# Steepness as searched; the paper's fits lie between 1.6 and 2.5.
_STEEPNESS = (0.2, 8.0)
# Midpoint as searched, in parts of the smallest and of the largest compute.
_MIDPOINT = (0.1, 100.0)
_GRID = (24, 48)  # steepnesses and midpoints tried: the refinement begins at the best
_MAX_GAIN = 10.0  # of an unbounded score, times the range seen
_ITERATIONS = 100


class Curve(NamedTuple):
    """R(C) = start + (ceiling - start) / (1 + (midpoint / C) ** steepness).

    `start` is the score without compute (R0), `ceiling` what it tends to (A),
    `midpoint` the compute at half the gain (Cmid), in the unit of C.
    """

    start: float
    ceiling: float
    steepness: float
    midpoint: float


class TooFewPoints(ValueError):  # noqa: N818 (says what is wrong)
    """There are fewer than two points more than unknowns."""


class NoRise(ValueError):  # noqa: N818
    """The score does not rise with compute: it tends to nothing that lies ahead."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A curve through points, and the curves through their resamples.

    Attributes:
        resamples: [Z, 4], fields of `Curve` in order; their spread is the doubt.
        noise: standard deviation of a point around the curve.
    """

    curve: Curve
    resamples: np.ndarray
    noise: float

    def interval(self, field: str) -> tuple[float, float]:
        """95 % interval of a field of the curve."""
        column = self.resamples[:, Curve._fields.index(field)]
        low, high = np.percentile(column, [2.5, 97.5])
        return float(low), float(high)

    def predicted(self, compute: float) -> tuple[float, float, float]:
        """The curve at `compute`, with its 95 % interval."""
        values = score_at(self.resamples.T[..., None], np.array([compute]))
        low, high = np.percentile(values, [2.5, 97.5])
        return float(score_at(self.curve, compute)), float(low), float(high)

    @property
    def is_open(self) -> bool:
        """True if the points leave the ceiling open by more than half of the gain."""
        low, high = self.interval("ceiling")
        return high - low > 0.5 * (self.curve.ceiling - self.curve.start)


def score_at(curve, compute) -> np.ndarray:
    """The score after `compute`; arrays broadcast, and `curve` may hold arrays."""
    start, ceiling, steepness, midpoint = curve
    share, _ = _share(compute, steepness, np.log(midpoint))
    return start + (ceiling - start) * share


def fit(
    compute_N: np.ndarray,
    score_N: np.ndarray,
    *,
    start: float | None = None,
    num_starts: int = 0,
    ceiling: float | None = None,
    max_ceiling: float | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Fit:
    """Least squares for the curve, and a bootstrap of the residuals for its doubt.

    A grid of steepnesses and midpoints, at each of which the best start and ceiling
    are a linear problem, then Levenberg-Marquardt for all unknowns together from the
    best of them. (The paper stops at a grid; at its spacing the ceiling comes out 0.575
    where the points say 0.6.)

    The resamples are the curve plus residuals drawn anew, widened for the unknowns that
    the fit spent, for few points, and for neighbours that err alike.

    Args:
        compute_N: 0 or above, in order, any unit; a score without compute is a point
            like others.
        start: the score without compute; None to fit it too.
        ceiling: known from elsewhere; None to fit it.
        max_ceiling: the largest that a ceiling can be; None for an unbounded score.

    Raises:
        TooFewPoints, NoRise: see there.
    """
    compute_N = np.asarray(compute_N, np.float64)
    score_N = np.asarray(score_N, np.float64)
    unknowns = 2 + (start is None) + (ceiling is None)
    N = len(score_N)
    if N < unknowns + MIN_SPARE_POINTS:
        raise TooFewPoints(
            f"{N} points for a curve of {unknowns} unknowns: it takes "
            f"{unknowns + MIN_SPARE_POINTS} or more"
        )
    seen = score_N if start is None else np.append(score_N, start)
    if max_ceiling is None:
        max_ceiling = float(seen.max() + _MAX_GAIN * np.ptp(seen))
    limits = _limits(compute_N, seen, max_ceiling)
    best = _least_squares(compute_N, score_N[None], start, ceiling, limits)[0]
    if best[1] <= best[0] + 1e-9:
        raise NoRise("the score does not rise with compute")
    residual_N = score_N - score_at(best, compute_N)
    spare = N - unknowns
    noise = float(np.sqrt((residual_N**2).sum() / spare))
    residual_N = (residual_N - residual_N.mean()) * math.sqrt(N / spare)
    rng = np.random.default_rng(seed)
    residual_N = residual_N * _student_widening(spare) * _neighbour_widening(residual_N)
    drawn_ZN = residual_N[rng.integers(0, N, (num_resamples, N))]
    score_ZN = score_at(best, compute_N) + drawn_ZN
    resamples = _least_squares(compute_N, score_ZN, start, ceiling, limits)
    return Fit(Curve(*map(float, best)), resamples, noise)


def crossing(a: Curve, b: Curve, low: float, high: float) -> float | None:
    """The largest compute in low .. high at which two curves change places, if any."""
    compute = np.geomspace(low, high, 4001)
    ahead = np.sign(score_at(a, compute) - score_at(b, compute))
    turns = np.flatnonzero(ahead[1:] * ahead[:-1] < 0)
    if not len(turns):
        return None
    left, right = compute[turns[-1]], compute[turns[-1] + 1]
    for _ in range(60):
        middle = math.sqrt(left * right)
        same = np.sign(score_at(a, middle) - score_at(b, middle)) == ahead[turns[-1]]
        left, right = (middle, right) if same else (left, middle)
    return float(left)


class _Limits(NamedTuple):
    low_Q: np.ndarray
    high_Q: np.ndarray


def _limits(compute_N: np.ndarray, seen: np.ndarray, max_ceiling: float) -> _Limits:
    """What is searched of each unknown."""
    least = compute_N[compute_N > 0].min(initial=compute_N.max())
    midpoint = (least * _MIDPOINT[0], compute_N.max() * _MIDPOINT[1])
    span = max(float(np.ptp(seen)), 1e-6)
    return _Limits(
        np.array(
            [seen.min() - span, seen.min(), *np.log([_STEEPNESS[0], midpoint[0]])]
        ),
        np.array([seen.max(), max_ceiling, *np.log([_STEEPNESS[1], midpoint[1]])]),
    )


def _least_squares(
    compute_N: np.ndarray,
    score_ZN: np.ndarray,
    start: float | None,
    ceiling: float | None,
    limits: _Limits,
) -> np.ndarray:
    """The best curve of each row of scores, [Z, 4]; known unknowns stay as given."""
    x_ZQ = _best_of_grid(compute_N, score_ZN, start, ceiling, limits)
    free_Q = np.array([start is None, ceiling is None, True, True])
    x_ZQ = _refined(x_ZQ, compute_N, score_ZN, free_Q, limits)
    return np.concatenate([x_ZQ[:, :2], np.exp(x_ZQ[:, 2:])], axis=1)


def _best_of_grid(
    compute_N: np.ndarray,
    score_ZN: np.ndarray,
    start: float | None,
    ceiling: float | None,
    limits: _Limits,
) -> np.ndarray:
    """The best of all steepnesses and midpoints of a grid, with the linear unknowns."""
    low_Q, high_Q = limits
    steep, middle = (np.linspace(low_Q[i], high_Q[i], _GRID[i - 2]) for i in (2, 3))
    steep_U, middle_U = (x.ravel() for x in np.meshgrid(steep, middle))
    share_UN, _ = _share(compute_N, np.exp(steep_U)[:, None], middle_U[:, None])
    N = len(compute_N)
    # Sums over the points, for every shape and every row of scores.
    s_U1, ss_U1 = share_UN.sum(1)[:, None], (share_UN**2).sum(1)[:, None]
    sy_UZ, y_Z, yy_Z = share_UN @ score_ZN.T, score_ZN.sum(1), (score_ZN**2).sum(1)
    tiny = 1e-12  # against a shape that is 0 or 1 at every point
    if start is not None:
        start_UZ = np.full(sy_UZ.shape, start)
        gain_UZ = (sy_UZ - start * s_U1) / (ss_U1 + tiny)
    elif ceiling is not None:  # y - ceiling * share = start * (1 - share)
        top_UZ = y_Z - sy_UZ - ceiling * (s_U1 - ss_U1)
        start_UZ = top_UZ / (N - 2 * s_U1 + ss_U1 + tiny)
    else:
        gain_UZ = (N * sy_UZ - s_U1 * y_Z) / (N * ss_U1 - s_U1**2 + tiny)
        start_UZ = (y_Z - gain_UZ * s_U1) / N
    start_UZ = np.clip(start_UZ, low_Q[0], high_Q[0])
    if ceiling is not None:
        ceiling_UZ = np.full(sy_UZ.shape, ceiling)
    else:
        floor_UZ = np.minimum(np.maximum(low_Q[1], start_UZ), high_Q[1])
        ceiling_UZ = np.clip(start_UZ + gain_UZ, floor_UZ, high_Q[1])
    gain_UZ = ceiling_UZ - start_UZ
    error_UZ = (
        yy_Z
        - 2 * start_UZ * y_Z
        - 2 * gain_UZ * sy_UZ
        + N * start_UZ**2
        + 2 * start_UZ * gain_UZ * s_U1
        + gain_UZ**2 * ss_U1
    )
    best_Z = error_UZ.argmin(axis=0)
    rows = np.arange(len(best_Z))
    columns = (start_UZ[best_Z, rows], ceiling_UZ[best_Z, rows])
    return np.stack([*columns, steep_U[best_Z], middle_U[best_Z]], axis=1)


def _refined(
    x_ZQ: np.ndarray,
    compute_N: np.ndarray,
    score_ZN: np.ndarray,
    free_Q: np.ndarray,
    limits: _Limits,
) -> np.ndarray:
    """Levenberg-Marquardt within the limits, for all rows at once.

    An unknown at a limit stays there while the slope points outwards. A step is taken
    only if the sum of squares falls, so that no row ends worse than it began.
    """
    low_Q, high_Q = limits

    def residuals(x_ZQ):
        curve = (*x_ZQ[:, :2].T[..., None], *np.exp(x_ZQ[:, 2:]).T[..., None])
        return score_ZN - score_at(curve, compute_N)

    error_Z = (residuals(x_ZQ) ** 2).sum(1)
    damping_Z = np.full(len(x_ZQ), 1e-3)
    for _ in range(_ITERATIONS):
        slope_ZNQ = _slopes(x_ZQ, compute_N)
        down_ZQ = np.einsum("znq,zn->zq", slope_ZNQ, residuals(x_ZQ))
        pushed_ZQ = ((x_ZQ <= low_Q) & (down_ZQ < 0)) | (
            (x_ZQ >= high_Q) & (down_ZQ > 0)
        )
        move_ZQ = free_Q & ~pushed_ZQ
        slope_ZNQ = slope_ZNQ * move_ZQ[:, None]
        normal_ZQQ = np.einsum("znq,znr->zqr", slope_ZNQ, slope_ZNQ)
        diagonal_ZQ = np.einsum("zqq->zq", normal_ZQQ)  # a view
        diagonal_ZQ += damping_Z[:, None] * np.maximum(diagonal_ZQ, 1e-10) + ~move_ZQ
        step_ZQ = np.linalg.solve(normal_ZQQ, (down_ZQ * move_ZQ)[..., None])[..., 0]
        trial_ZQ = np.where(free_Q, np.clip(x_ZQ + step_ZQ, low_Q, high_Q), x_ZQ)
        trial_Z = (residuals(trial_ZQ) ** 2).sum(1)
        better_Z = trial_Z < error_Z
        fell_Z = error_Z - trial_Z > 1e-13 * error_Z + 1e-30
        x_ZQ = np.where(better_Z[:, None], trial_ZQ, x_ZQ)
        error_Z = np.where(better_Z, trial_Z, error_Z)
        damping_Z = np.where(better_Z, damping_Z / 4, damping_Z * 4).clip(1e-12, 1e12)
        if not np.any(fell_Z | (~better_Z & (damping_Z < 1e8))):
            break
    return x_ZQ


def _slopes(x_ZQ: np.ndarray, compute_N: np.ndarray) -> np.ndarray:
    """Derivatives of the score by each unknown, [Z, N, Q]."""
    start_Z1, ceiling_Z1, log_steep_Z1, log_middle_Z1 = x_ZQ.T[..., None]
    steep_Z1 = np.exp(log_steep_Z1)
    share_ZN, distance_ZN = _share(compute_N, steep_Z1, log_middle_Z1)
    distance_ZN = np.where(share_ZN > 0, distance_ZN, 0.0)  # no compute: no bend
    bend_ZN = (ceiling_Z1 - start_Z1) * share_ZN * (1 - share_ZN)
    return np.stack(
        [
            1 - share_ZN,
            share_ZN,
            bend_ZN * distance_ZN,
            -bend_ZN * np.broadcast_to(steep_Z1, bend_ZN.shape),
        ],
        axis=-1,
    )


def _share(compute, steepness, log_midpoint) -> tuple[np.ndarray, np.ndarray]:
    """1 / (1 + (midpoint / C) ** steepness), and steepness * log(C / midpoint)."""
    with np.errstate(divide="ignore"):
        distance = steepness * (np.log(compute) - log_midpoint)
    # As tanh, which overflows nowhere; no compute is minus infinity: a share of 0.
    return 0.5 * (1 + np.tanh(0.5 * distance)), distance


def _student_widening(spare: int) -> float:
    """97.5 % point of Student's t over that of the normal: noise told by few points.

    Cornish and Fisher's series in 1 / spare; 0.6 % off at 3, 4 % at 2.
    """
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return 1 + (first / spare + second / spare**2 + third / spare**3) / z


def _neighbour_widening(residual_N: np.ndarray) -> float:
    """How much wider a mean is spread if neighbours err alike; 1 if they do not.

    sqrt((1 + r) / (1 - r)) of the lag-1 correlation r, as of a first-order process.
    """
    r = (residual_N[1:] * residual_N[:-1]).sum() / max((residual_N**2).sum(), 1e-300)
    r = min(max(float(r), 0.0), 0.9)
    return math.sqrt((1 + r) / (1 - r))
