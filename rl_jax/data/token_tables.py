"""Whether several models mean the same token by an id, so that weights can be mixed."""

from collections.abc import Sequence

from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError


def check_same(named: Sequence[tuple[str, Tokenizer]]) -> None:
    """Raises ConfigError unless an id is the same token in all tokenizers.

    Args:
        named: each with the name of its model, for the message.
    """
    tables = [[text.token_text(i) for i in range(text.vocab_size)] for _, text in named]
    for (name, _), table in zip(named[1:], tables[1:], strict=True):
        if table == tables[0]:
            continue
        pairs = enumerate(zip(tables[0], table))
        shortest = min(len(table), len(tables[0]))
        at = next((i for i, (a, b) in pairs if a != b), shortest)
        ours, theirs = (x[at] if at < len(x) else None for x in (tables[0], table))
        raise ConfigError(
            f"{name} has another tokenizer than {named[0][0]}: token {at} is "
            f"{theirs!r}, not {ours!r}.\nA row of their embeddings means two things; "
            "only models of one tokenizer can be averaged."
        )
