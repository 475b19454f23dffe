"""Advantages and returns as the papers write them: float64, loops, one token at a time.

Legend: N samples, B packed rows, T positions of a row.
"""

import numpy as np


def deviation(values, correction: int) -> float:
    """Standard deviation about the mean, of values of which some differ."""
    mean = sum(values) / len(values)
    squares = [(x - mean) ** 2 for x in values]
    return float(np.sqrt(sum(squares) / (len(values) - correction)))


def agree(values) -> bool:
    return len(values) == 0 or max(values) == min(values)


def slow_group_advantage(reward_N, group_N, valid_N, centre, scale, eps):
    """What `group_advantage` says it does, sample by sample."""
    N = len(reward_N)
    members: dict[int, list[int]] = {}
    for n in range(N):
        if valid_N[n]:
            members.setdefault(int(group_N[n]), []).append(n)
    rewards = {g: [np.float64(reward_N[n]) for n in ns] for g, ns in members.items()}
    if scale == "varying_std":
        members = {g: ns for g, ns in members.items() if not agree(rewards[g])}
        rewards = {g: rewards[g] for g in members}
    batch = [x for g in members for x in rewards[g]]
    batch_mean = sum(batch) / max(len(batch), 1)
    batch_agrees = agree(batch)

    centred_N = np.zeros(N)
    for g, ns in members.items():
        total, group_agrees = sum(rewards[g]), agree(rewards[g])
        for n in ns:
            reward = np.float64(reward_N[n])
            if centre == "none":
                centred_N[n] = reward
            elif centre == "batch_mean":
                centred_N[n] = 0.0 if batch_agrees else reward - batch_mean
            elif group_agrees:
                centred_N[n] = 0.0
            elif centre == "group_mean":
                centred_N[n] = reward - total / len(ns)
            else:
                centred_N[n] = reward - (total - reward) / (len(ns) - 1)
    if scale == "none":
        return centred_N

    correction = 1 if scale.endswith("sample_std") else 0
    adv_N = np.zeros(N)
    centred_batch = [centred_N[n] for ns in members.values() for n in ns]
    batch_std = 0.0 if batch_agrees else deviation(centred_batch, correction)
    for g, ns in members.items():
        if scale.startswith("group"):
            if agree(rewards[g]):
                continue
            spread = deviation(rewards[g], correction)
        elif batch_agrees:
            continue
        else:
            spread = batch_std
        for n in ns:
            adv_N[n] = centred_N[n] / (spread + eps)
    return adv_N


def slow_gae(reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT, gamma, lam):
    """arXiv:1506.02438, equation 16, backwards over the tokens that count."""
    B, T = reward_BT.shape
    adv_BT = np.zeros((B, T))
    for b in range(B):
        next_value = next_adv = 0.0
        for t in reversed(range(T)):
            if t == T - 1 or segment_BT[b, t] != segment_BT[b, t + 1]:
                next_value, next_adv = np.float64(bootstrap_BT[b, t]), 0.0
            if mask_BT[b, t]:
                value = np.float64(value_BT[b, t])
                delta = np.float64(reward_BT[b, t]) + gamma * next_value - value
                adv_BT[b, t] = delta + gamma * lam * next_adv
                next_value, next_adv = value, adv_BT[b, t]
    return adv_BT


def slow_returns(reward_BT, segment_BT, mask_BT, bootstrap_BT, gamma):
    B, T = reward_BT.shape
    return_BT = np.zeros((B, T))
    for b in range(B):
        later = 0.0
        for t in reversed(range(T)):
            if t == T - 1 or segment_BT[b, t] != segment_BT[b, t + 1]:
                later = np.float64(bootstrap_BT[b, t])
            if mask_BT[b, t]:
                later = np.float64(reward_BT[b, t]) + gamma * later
                return_BT[b, t] = later
    return return_BT


def group_size_of_error(expected_N, group_N, valid_N, centre):
    """What an error is measured against: the largest advantage of a sample's group.

    An advantage close to 0 is a difference of rewards and their mean, and cannot be
    known better than to a part of the largest. With a baseline of the whole batch the
    largest is that of the batch.
    """
    if centre == "batch_mean":
        group_N = np.zeros(len(expected_N), int)
    size_N = np.zeros(len(expected_N))
    for group in np.unique(group_N[valid_N]):
        peers_N = valid_N & (group_N == group)
        size_N[peers_N] = np.abs(expected_N[peers_N]).max()
    return size_N


def segment_size_of_error(segment_BT, mask_BT, bootstrap_BT, *arrays):
    """The largest number in play in each token's segment."""
    size_BT = np.zeros(segment_BT.shape)
    B, T = segment_BT.shape
    for b in range(B):
        start = 0
        for t in range(T):
            if t == T - 1 or segment_BT[b, t] != segment_BT[b, t + 1]:
                here = slice(start, t + 1)
                live = mask_BT[b, here].astype(bool)
                numbers = [abs(float(bootstrap_BT[b, t]))]
                for x_BT in arrays:
                    numbers += np.abs(x_BT[b, here][live]).tolist()
                size_BT[b, here] = max(numbers)
                start = t + 1
    return size_BT
