"""Attention in NumPy and float64: slow loops that read like the definition.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head, W decode slots, M pages of S positions, J pages of a slot.
"""

import numpy as np


def visible(segment_T, t, window):
    """Positions that query t sees: of its own segment, not later, within the window."""
    oldest = 0 if window is None else max(0, t - window + 1)
    return [s for s in range(oldest, t + 1) if segment_T[s] == segment_T[t]]


def capped(score, softcap):
    """(capped scores, their derivative)."""
    if not softcap:
        return score, np.ones_like(score)
    return softcap * np.tanh(score / softcap), 1 - np.tanh(score / softcap) ** 2


def softmax(score):
    weight = np.exp(score - score.max())
    return weight / weight.sum()


def packed(q_BTHC, k_BTKC, v_BTKC, segment_BT, *, window=None, scale, softcap=0.0):
    """out_BTHC; zeros where segment_BT is 0."""
    q, k, v = (x.astype(np.float64) for x in (q_BTHC, k_BTKC, v_BTKC))
    out_BTHC = np.zeros(q.shape)
    R = q.shape[2] // k.shape[2]
    for b, t in np.argwhere(np.asarray(segment_BT) != 0):
        seen = visible(segment_BT[b], t, window)
        for h in range(q.shape[2]):
            score, _ = capped(k[b, seen, h // R] @ q[b, t, h] * scale, softcap)
            out_BTHC[b, t, h] = softmax(score) @ v[b, seen, h // R]
    return out_BTHC


def packed_grads(
    q_BTHC,
    k_BTKC,
    v_BTKC,
    segment_BT,
    d_out_BTHC,
    *,
    window=None,
    scale,
    softcap=0.0,
):
    """(d_q, d_k, d_v) of sum(d_out * out) over positions whose segment is not 0."""
    q, k, v, d_out = (
        x.astype(np.float64) for x in (q_BTHC, k_BTKC, v_BTKC, d_out_BTHC)
    )
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    R = q.shape[2] // k.shape[2]
    for b, t in np.argwhere(np.asarray(segment_BT) != 0):
        seen = visible(segment_BT[b], t, window)
        for h in range(q.shape[2]):
            score, slope = capped(k[b, seen, h // R] @ q[b, t, h] * scale, softcap)
            weight = softmax(score)
            d_weight = v[b, seen, h // R] @ d_out[b, t, h]
            d_score = weight * (d_weight - weight @ d_weight) * slope * scale
            dv[b, seen, h // R] += np.outer(weight, d_out[b, t, h])
            dk[b, seen, h // R] += np.outer(d_score, q[b, t, h])
            dq[b, t, h] = d_score @ k[b, seen, h // R]
    return dq, dk, dv


def largest_score(q_BTHC, k_BTKC, segment_BT, *, window=None, scale, softcap=0.0):
    """Largest absolute score of any key that is seen."""
    q, k = q_BTHC.astype(np.float64), k_BTKC.astype(np.float64)
    R, largest = q.shape[2] // k.shape[2], 0.0
    for b, t in np.argwhere(np.asarray(segment_BT) != 0):
        seen = visible(segment_BT[b], t, window)
        for h in range(q.shape[2]):
            score, _ = capped(k[b, seen, h // R] @ q[b, t, h] * scale, softcap)
            largest = max(largest, np.abs(score).max())
    return largest


def paged(
    q_WHC,
    k_pages_KMSC,
    v_pages_KMSC,
    page_WJ,
    length_W,
    *,
    window=None,
    scale,
    softcap=0.0,
):
    """out_WHC; zeros for a slot of length 0."""
    q, k, v = (x.astype(np.float64) for x in (q_WHC, k_pages_KMSC, v_pages_KMSC))
    out_WHC = np.zeros(q.shape)
    S, R = k.shape[2], q.shape[1] // k.shape[0]
    for w, length in enumerate(length_W):
        oldest = 0 if window is None else max(0, length - window)
        at = [(page_WJ[w, s // S], s % S) for s in range(oldest, length)]
        for h in range(q.shape[1] if at else 0):
            keys = np.array([k[h // R, page, s] for page, s in at])
            values = np.array([v[h // R, page, s] for page, s in at])
            score, _ = capped(keys @ q[w, h] * scale, softcap)
            out_WHC[w, h] = softmax(score) @ values
    return out_WHC
