"""Text to token ids and back: two libraries behind one set of methods.

`JsonModel` reads tokenizer.json (the `tokenizers` library), `PieceModel` reads
tokenizer.model (SentencePiece). Neither ever adds a token that the text does not
spell: no beginning-of-sequence token, no padding, no truncation. What a model calls
its tokens, and where it stops, is in tokenizer.py.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence

import sentencepiece
import tokenizers

from rl_jax.errors import ConfigError

# A serialised ModelProto to which this is appended parses with
# normalizer_spec.add_dummy_prefix = false: in protocol buffers a later value wins.
_WITHOUT_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


class JsonModel:
    """A tokenizer.json.

    Attributes:
        special_ids: the special tokens and their ids. Only `specials=True` reads
            them from text; an added token that is not special, such as some models'
            `<think>`, is always read as that token.
        special_pattern: finds the special tokens in a text.
        own_ids: ids that the file itself names, by "bos", "eos", "pad"; none here.
        vocab_size: largest id + 1.
    """

    def __init__(self, file: pathlib.Path):
        source = file.read_text(encoding="utf-8")
        try:
            # Two copies, as the switch between them is state of the object, and one
            # thread must not flip it under another.
            self._parsing = tokenizers.Tokenizer.from_str(source)
            self._plain = tokenizers.Tokenizer.from_str(source)
        except Exception as error:  # The library raises nothing narrower.
            raise ConfigError(f"Cannot read {file}: {error}") from error
        self._plain.encode_special_tokens = True
        for model in (self._parsing, self._plain):
            # Some files were saved with a length of somebody's training set-up.
            model.no_truncation()
            model.no_padding()
        self.special_ids: Mapping[str, int] = {
            token.content: token_id
            for token_id, token in self._parsing.get_added_tokens_decoder().items()
            if token.special
        }
        self.special_pattern = _pattern(self.special_ids)
        self.own_ids: Mapping[str, int] = {}
        vocab = self._parsing.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values()) + 1

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """See Tokenizer.encode."""
        if specials:
            return self._parsing.encode(text, add_special_tokens=False).ids
        ids = self._plain.encode(text, add_special_tokens=False).ids
        spelt = self.special_pattern.findall(text)
        if any(self.special_ids[name] in ids for name in spelt):
            raise ConfigError(
                "This tokenizer.json cannot write the name of a special token as plain "
                f"text: {text[:80]!r}.\nTake such names out of the data."
            )
        return ids

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """See Tokenizer.decode."""
        return self._parsing.decode(list(ids), skip_special_tokens=not specials)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written `text` in the vocabulary."""
        return self._parsing.token_to_id(text)

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        return self._parsing.id_to_token(token_id)


class PieceModel:
    """A tokenizer.model of SentencePiece.

    Some models put a space before the text ("dummy prefix"). It is put before the
    first text of a string; with `prefix_each`, also before each text that follows a
    special token, as the first Llama tokenizers do.

    Attributes:
        special_ids: the special tokens and their ids: the model's control pieces, and
            those that the caller names.
        special_pattern: finds the special tokens in a text.
        own_ids: ids that the file itself names, by "bos", "eos", "pad".
        vocab_size: largest id + 1.
    """

    def __init__(
        self,
        file: pathlib.Path,
        *,
        specials: Mapping[str, int],
        prefix_each: bool = False,
    ):
        proto = file.read_bytes()
        self._model = sentencepiece.SentencePieceProcessor()
        self._bare = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(proto)
            self._bare.LoadFromSerializedProto(proto + _WITHOUT_DUMMY_PREFIX)
        except Exception as error:  # The library raises nothing narrower.
            raise ConfigError(f"Cannot read {file}: {error}") from error
        self._prefix_each = prefix_each
        size = self._model.GetPieceSize()
        control = {
            self._model.IdToPiece(i): i for i in range(size) if self._model.IsControl(i)
        }
        self.special_ids: Mapping[str, int] = {**control, **specials}
        self._special_texts = {i: text for text, i in self.special_ids.items()}
        self.special_pattern = _pattern(self.special_ids)
        own_ids = {
            "bos": self._model.bos_id(),
            "eos": self._model.eos_id(),
            "pad": self._model.pad_id(),
        }
        self.own_ids: Mapping[str, int] = {k: i for k, i in own_ids.items() if i >= 0}
        self.vocab_size: int = max([size - 1, *self._special_texts]) + 1

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """See Tokenizer.encode."""
        if not specials:
            return self._encode_plain(text, prefix=True)
        ids: list[int] = []
        start = 0
        for found in self.special_pattern.finditer(text):
            ids += self._encode_plain(text[start : found.start()], prefix=start == 0)
            ids.append(self.special_ids[found[0]])
            start = found.end()
        return ids + self._encode_plain(text[start:], prefix=start == 0)

    def _encode_plain(self, text: str, *, prefix: bool) -> list[int]:
        # A user-defined piece is found wherever the text spells it, so the spelling
        # of one that is special has to be cut in two. The other pieces are not.
        ids: list[int] = []
        start = 0
        for found in self.special_pattern.finditer(text):
            ids += self._encode_run(text[start : found.start() + 1], prefix=prefix)
            start, prefix = found.start() + 1, False
        return ids + self._encode_run(text[start:], prefix=prefix)

    def _encode_run(self, text: str, *, prefix: bool) -> list[int]:
        model = self._model if prefix or self._prefix_each else self._bare
        return model.Encode(text, return_type=int)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """See Tokenizer.decode."""
        texts: list[str] = []
        run: list[int] = []
        model = self._model
        for token_id in ids:
            if token_id not in self._special_texts:
                # A row of the embedding that stands for no token has no text.
                if 0 <= token_id < self.vocab_size:
                    run.append(int(token_id))
                continue
            texts.append(model.Decode(run, return_type=str))
            run = []
            model = self._model if self._prefix_each else self._bare
            if specials:
                texts.append(self._special_texts[token_id])
        texts.append(model.Decode(run, return_type=str))
        return "".join(texts)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written `text` in the vocabulary."""
        if text in self.special_ids:
            return self.special_ids[text]
        token_id = self._model.PieceToId(text)
        # An unknown text has the id of the piece for unknown text.
        return token_id if self._model.IdToPiece(token_id) == text else None

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        if token_id in self._special_texts:
            return self._special_texts[token_id]
        in_model = 0 <= token_id < self._model.GetPieceSize()
        return self._model.IdToPiece(token_id) if in_model else None


def _pattern(texts: Mapping[str, int]) -> re.Pattern[str]:
    """A pattern that finds any of `texts`, the longest first; none if it is empty."""
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
