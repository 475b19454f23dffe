"""What the mask of a conversation covers, as text."""

from rl_jax.data import chat


def masked_text(tokenizer, messages, **given):
    """What the mask covers, a run of True after another."""
    return runs(tokenizer, *chat.conversation_ids(tokenizer, messages, **given))


def learnt_texts(tokenizer, messages, **given):
    """The same of each training sequence."""
    sequences = chat.training_sequences(tokenizer, messages, **given)
    return [runs(tokenizer, *sequence) for sequence in sequences]


def runs(tokenizer, ids, mask):
    assert len(ids) == len(mask) and all(type(flag) is bool for flag in mask)
    found, previous = [], False
    for token_id, flag in zip(ids, mask, strict=True):
        if flag and not previous:
            found.append([])
        if flag:
            found[-1].append(token_id)
        previous = flag
    return [tokenizer.decode(run, specials=True) for run in found]
