"""A reward model in NumPy and float64, written from the papers and not from our code.

Legend: T positions, D width, H/K query and key/value heads, C channels of a head.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_jax.models.spec import ModelSpec

Tree = dict[str, np.ndarray]


def slow_score(params: Any, tokens: Sequence[int], model: ModelSpec) -> float:
    """The score of a reply, alone in its row, from a tree of float64 arrays."""
    trunk, layers, (T, C) = params.trunk, params.trunk.layers, (len(tokens), 0)
    C = model.head_dim
    x_TD = np.array([trunk.embed_VD[token] for token in tokens])
    causal_TT = np.tril(np.ones((T, T), bool))
    for i in range(model.num_layers):
        h_TD = _norm(x_TD, layers.attn_norm_LD[i], model)
        q_THC = np.einsum("td,dhc->thc", h_TD, layers.w_q_LDHC[i])
        k_TKC = np.einsum("td,dkc->tkc", h_TD, layers.w_k_LDKC[i])
        v_TKC = np.einsum("td,dkc->tkc", h_TD, layers.w_v_LDKC[i])
        q_THC, k_TKC = _turned(q_THC, model), _turned(k_TKC, model)
        for head in range(model.num_heads):
            k = head * model.num_kv_heads // model.num_heads
            score_TT = q_THC[:, head] @ k_TKC[:, k].T / math.sqrt(C)
            weight_TT = np.where(causal_TT, np.exp(score_TT), 0.0)
            weight_TT /= weight_TT.sum(1, keepdims=True)
            x_TD = x_TD + weight_TT @ v_TKC[:, k] @ layers.w_o_LHCD[i, head]
        h_TD = _norm(x_TD, layers.mlp_norm_LD[i], model)
        gate_TF = h_TD @ layers.w_gate_LDF[i]
        up_TF = h_TD @ layers.w_up_LDF[i]
        hidden_TF = gate_TF / (1 + np.exp(-gate_TF)) * up_TF
        x_TD = x_TD + hidden_TF @ layers.w_down_LFD[i]
    last_D = _norm(x_TD, trunk.norm_D, model)[-1]
    return float(last_D @ params.score_D + params.bias)


def _norm(x_TD, scale_D, model):
    root_T1 = np.sqrt((x_TD**2).mean(1, keepdims=True) + model.norm_eps)
    return x_TD / root_T1 * scale_D


def _turned(x_THC, model):
    half = model.head_dim // 2
    theta = model.attention[0].rope_theta
    speed_C = theta ** (-2 * np.arange(half) / model.head_dim)
    angle_T1C = np.arange(len(x_THC))[:, None, None] * speed_C
    a, b = x_THC[..., :half], x_THC[..., half:]
    turned = (a + 1j * b) * np.exp(1j * angle_T1C)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def slow_loss(
    scores: Sequence[Sequence[float]],
    ranks: Sequence[Sequence[int]],
    margins: Sequence[Any],
) -> float:
    """Mean over prompts of the mean loss of each prompt's pairs."""
    means = []
    for score, rank, margin in zip(scores, ranks, margins, strict=True):
        losses = [
            math.log1p(math.exp(score[j] - score[i] + (margin[i][j] if margin else 0)))
            for i in range(len(score))
            for j in range(len(score))
            if rank[i] < rank[j]
        ]
        means.append(sum(losses) / len(losses))
    return sum(means) / len(means)


def slow_gradient(loss: Any, weights: Tree, eps: float = 1e-5) -> Tree:
    """Central differences of loss(weights), one weight after the other."""
    grads = {}
    for name, value in weights.items():
        grad = np.zeros_like(value)
        for at in np.ndindex(value.shape):
            ends = []
            for step in (eps, -eps):
                moved = value.copy()
                moved[at] += step
                ends.append(loss(weights | {name: moved}))
            grad[at] = (ends[0] - ends[1]) / (2 * eps)
        grads[name] = grad
    return grads


def slow_first_adam_step(
    weights: Tree,
    grads: Tree,
    *,
    lr: float,
    clip_norm: float,
    eps: float,
    weight_decay: float,
    decayed: set[str],
) -> Tree:
    """Weights after the first step of AdamW on a clipped gradient.

    At the first step the corrected moments are the gradient and its square.
    """
    norm = math.sqrt(sum((grad**2).sum() for grad in grads.values()))
    after = {}
    for name, value in weights.items():
        grad = grads[name] * min(1.0, clip_norm / norm)
        move = grad / (np.abs(grad) + eps)
        if name in decayed:
            move = move + weight_decay * value
        after[name] = value - lr * move
    return after
