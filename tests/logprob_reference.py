"""Log-probability, entropy and KL of whole distributions: float64, slow and obvious.

Arrays of any float dtype go in; everything is computed one token at a time in float64.
A token whose mask is 0 gives 0 and is not looked at.

Legend: N tokens, D model width (E the teacher's), V vocabulary.
"""

from typing import NamedTuple

import numpy as np


class Logprob(NamedTuple):
    logp_N: np.ndarray
    entropy_N: np.ndarray
    lse_N: np.ndarray


class KL(NamedTuple):
    reverse_N: np.ndarray
    forward_N: np.ndarray


class Grads(NamedTuple):
    hidden_ND: np.ndarray
    weight: np.ndarray  # in the weight's own layout
    bias_V: np.ndarray


class Model(NamedTuple):
    """Hidden states and a head, and how logits come from them."""

    hidden_ND: np.ndarray
    weight: np.ndarray
    bias_V: np.ndarray | None = None
    layout: str = "VD"
    temperature: float = 1.0
    softcap: float = 0.0


def logits(model: Model, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(z_V of token n, the derivative of each by hidden @ head.T + bias)."""
    weight = np.asarray(model.weight).astype(np.float64)
    weight_VD = weight if model.layout == "VD" else weight.T
    z_V = weight_VD @ np.asarray(model.hidden_ND[n]).astype(np.float64)
    if model.bias_V is not None:
        z_V = z_V + np.asarray(model.bias_V).astype(np.float64)
    slope_V = np.ones_like(z_V)
    if model.softcap:
        slope_V = 1 - np.tanh(z_V / model.softcap) ** 2
        z_V = model.softcap * np.tanh(z_V / model.softcap)
    return z_V / model.temperature, slope_V / model.temperature


def logsumexp(z_V: np.ndarray) -> float:
    return float(z_V.max() + np.log(np.exp(z_V - z_V.max()).sum()))


def token_logprob(model: Model, target_N, mask_N=None) -> Logprob:
    N = len(model.hidden_ND)
    out = Logprob(np.zeros(N), np.zeros(N), np.zeros(N))
    for n in _live(N, mask_N):
        z_V, _ = logits(model, n)
        lse = logsumexp(z_V)
        p_V = np.exp(z_V - lse)
        out.logp_N[n] = z_V[target_N[n]] - lse
        out.entropy_N[n] = -np.sum(p_V * (z_V - lse))
        out.lse_N[n] = lse
    return out


def logprob_grads(model: Model, target_N, d_out, mask_N=None) -> Grads:
    """Gradients of sum(d_logp * logp + d_entropy * entropy + d_lse * lse).

    `d_out` is (d_logp_N, d_entropy_N, d_lse_N).
    """
    d_logp_N, d_entropy_N, d_lse_N = d_out
    d_z_N = {}
    for n in _live(len(model.hidden_ND), mask_N):
        z_V, slope_V = logits(model, n)
        lse = logsumexp(z_V)
        p_V = np.exp(z_V - lse)
        entropy = -np.sum(p_V * (z_V - lse))
        hit_V = np.arange(len(z_V)) == target_N[n]
        d_z_V = float(d_logp_N[n]) * (hit_V - p_V)
        d_z_V -= float(d_entropy_N[n]) * p_V * (z_V - lse + entropy)
        d_z_V += float(d_lse_N[n]) * p_V
        d_z_N[n] = d_z_V * slope_V
    return _through_head(model, d_z_N)


def token_kl(student: Model, teacher: Model, mask_N=None) -> KL:
    """reverse = sum_v p_s (log p_s - log p_t), forward = sum_v p_t (log p_t - log p_s).

    s is the student, t the teacher.
    """
    N = len(student.hidden_ND)
    out = KL(np.zeros(N), np.zeros(N))
    for n in _live(N, mask_N):
        logp_s_V, logp_t_V, _ = _both(student, teacher, n)
        out.reverse_N[n] = np.sum(np.exp(logp_s_V) * (logp_s_V - logp_t_V))
        out.forward_N[n] = np.sum(np.exp(logp_t_V) * (logp_t_V - logp_s_V))
    return out


def kl_grads(student: Model, teacher: Model, d_out, mask_N=None) -> Grads:
    """Gradients of sum(d_reverse * reverse + d_forward * forward), the student's.

    `d_out` is (d_reverse_N, d_forward_N).
    """
    d_reverse_N, d_forward_N = d_out
    d_z_N = {}
    for n in _live(len(student.hidden_ND), mask_N):
        logp_s_V, logp_t_V, slope_V = _both(student, teacher, n)
        p_s_V, p_t_V = np.exp(logp_s_V), np.exp(logp_t_V)
        reverse = np.sum(p_s_V * (logp_s_V - logp_t_V))
        d_z_V = float(d_reverse_N[n]) * p_s_V * (logp_s_V - logp_t_V - reverse)
        d_z_V += float(d_forward_N[n]) * (p_s_V - p_t_V)
        d_z_N[n] = d_z_V * slope_V
    return _through_head(student, d_z_N)


def largest_logit(model: Model, mask_N=None) -> float:
    """Largest |z| of the tokens that count; 0 if there are none."""
    live = _live(len(model.hidden_ND), mask_N)
    return max((float(np.abs(logits(model, n)[0]).max()) for n in live), default=0.0)


def _live(N, mask_N):
    return [n for n in range(N) if mask_N is None or mask_N[n]]


def _both(student, teacher, n):
    z_s_V, slope_V = logits(student, n)
    z_t_V, _ = logits(teacher, n)
    return z_s_V - logsumexp(z_s_V), z_t_V - logsumexp(z_t_V), slope_V


def _through_head(model, d_z_N):
    """Gradients by hidden states, weight and bias, from those by the bare logits."""
    weight = np.asarray(model.weight).astype(np.float64)
    weight_VD = weight if model.layout == "VD" else weight.T
    d_hidden_ND = np.zeros(model.hidden_ND.shape)
    d_weight_VD = np.zeros(weight_VD.shape)
    d_bias_V = np.zeros(len(weight_VD))
    for n, d_z_V in d_z_N.items():
        d_hidden_ND[n] = d_z_V @ weight_VD
        d_weight_VD += np.outer(d_z_V, np.asarray(model.hidden_ND[n]).astype(float))
        d_bias_V += d_z_V
    d_weight = d_weight_VD if model.layout == "VD" else d_weight_VD.T
    return Grads(d_hidden_ND, d_weight, d_bias_V)
