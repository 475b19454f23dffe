"""Whether an id is the same token in several tokenizers."""

from typing import Any

import pytest

from rl_jax.data.token_tables import check_same
from rl_jax.errors import ConfigError


class Text:
    """A tokenizer of these tokens."""

    def __init__(self, *tokens):
        self._tokens, self.vocab_size = tokens, len(tokens)

    def token_text(self, i):
        return self._tokens[i]


def named(*tokenizers: Any):
    return [(f"model {i}", text) for i, text in enumerate(tokenizers)]


def test_tokenizers_of_the_same_tokens_pass():
    check_same(named())
    check_same(named(Text("a", "b")))
    check_same(named(Text("a", "b"), Text("a", "b"), Text("a", "b")))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Text("a", "x"), "token 1 is 'x', not 'b'"),
        (Text("a"), "token 1 is None, not 'b'"),
        (Text("a", "b", "c"), "token 2 is 'c', not None"),
    ],
)
def test_the_first_token_that_differs_is_named(other, told):
    with pytest.raises(ConfigError, match="model 2 has another tokenizer") as error:
        check_same(named(Text("a", "b"), Text("a", "b"), other))
    assert told in str(error.value) and len(str(error.value).splitlines()) <= 3
