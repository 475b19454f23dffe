"""Text to token ids and back: two libraries behind one set of methods.

`JsonModel` reads tokenizer.json (the `tokenizers` library), `PieceModel` reads
tokenizer.model (SentencePiece). Neither ever adds a token that the text does not
spell: no beginning-of-sequence token, no padding, no truncation. What a model calls
its tokens, and where it stops, is in tokenizer.py.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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

    def __init__(
        self,
        file: pathlib.Path,
        *,
        added: Mapping[str, int] | None = None,
        specials: Iterable[str] = (),
    ):
        """Reads `file`.

        Args:
            added: tokens, and their ids, that other files of the folder add to it.
            specials: names of tokens that are special whatever the file says of them.
        """
        try:
            source = file.read_text(encoding="utf-8")
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
            _add(model, file, added or {}, set(specials))
        self.special_ids: Mapping[str, int] = {
            token.content: token_id
            for token_id, token in self._parsing.get_added_tokens_decoder().items()
            if token.special
        }
        self.special_pattern = _pattern(self.special_ids)
        self.own_ids: Mapping[str, int] = {}
        vocab = self._parsing.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values()) + 1
        self._prefixes = _puts_prefix(json.loads(source))

    def encode(
        self, text: str, specials: bool = False, continues: bool = False
    ) -> list[int]:
        """See Tokenizer.encode."""
        if specials:
            return self._encode(self._parsing, text, continues)
        ids = self._encode(self._plain, text, continues)
        spelt = self.special_pattern.findall(text)
        if any(self.special_ids[name] in ids for name in spelt):
            raise ConfigError(
                "This tokenizer.json cannot write the name of a special token as plain "
                f"text: {text[:80]!r}.\nTake such names out of the data."
            )
        return ids

    def _encode(
        self, model: tokenizers.Tokenizer, text: str, continues: bool
    ) -> list[int]:
        if not (continues and self._prefixes):
            return model.encode(text, add_special_tokens=False).ids
        # The library has no switch for the space in front. It goes before whatever
        # comes first, so that is put there and taken off again: the first of these
        # that does not grow together with the text.
        for front in ("\n", ".", "0"):
            before = model.encode(front, add_special_tokens=False).ids
            ids = model.encode(front + text, add_special_tokens=False).ids
            if ids[: len(before)] == before:
                return ids[len(before) :]
        raise ConfigError(
            f"The tokenizer cannot take {text[:80]!r} as the middle of a text."
        )

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """See Tokenizer.decode."""
        return self._parsing.decode(list(ids), skip_special_tokens=not specials)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written `text` in the vocabulary."""
        return self._parsing.token_to_id(text)

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        return self._parsing.id_to_token(token_id)


def _add(
    model: tokenizers.Tokenizer,
    file: pathlib.Path,
    added: Mapping[str, int],
    specials: set[str],
) -> None:
    """Adds tokens that only the files beside a tokenizer.json name."""
    known = {token.content for token in model.get_added_tokens_decoder().values()}
    in_vocab = {text: model.token_to_id(text) for text in specials}
    wanted = {t: i for t, i in in_vocab.items() if i is not None} | dict(added)
    for text, token_id in sorted(wanted.items(), key=lambda item: item[1]):
        if text not in known:
            special = text in specials
            model.add_tokens(
                [tokenizers.AddedToken(text, special=special, normalized=False)]
            )
        if model.token_to_id(text) != token_id:
            raise ConfigError(
                f"{file} and the files beside it disagree on the id of {text!r}: "
                f"{model.token_to_id(text)} and {token_id}."
            )


def _puts_prefix(part: Any) -> bool:
    """Whether a tokenizer.json puts a space before a text."""
    if isinstance(part, list):
        return any(map(_puts_prefix, part))
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if kind == "Prepend" or (kind == "ByteLevel" and part.get("add_prefix_space")):
        return True
    if kind == "Metaspace":
        scheme = part.get("prepend_scheme", part.get("add_prefix_space", "always"))
        return scheme not in ("never", False)
    # What decoders and post-processors say of spaces is of no account.
    names = ("normalizer", "normalizers", "pre_tokenizer", "pretokenizers")
    return any(_puts_prefix(part.get(name)) for name in names)


class PieceModel:
    """A tokenizer.model of SentencePiece.

    Some models put a space before the text ("dummy prefix"). It is put before the
    first text of a string, where that does not begin with a space; with `prefix_each`,
    before that and each text that follows a special token, spaces or not, as the first
    Llama tokenizers do. Both are as transformers has it with legacy=false and true.

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
        added: Mapping[str, int] | None = None,
        specials: Iterable[str] = (),
        prefix_each: bool = False,
    ):
        """Reads `file`; `added` and `specials` are those of JsonModel."""
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
        self._own = {self._model.IdToPiece(i): i for i in range(size)}
        extra = {text: i for text, i in (added or {}).items() if text not in self._own}
        special = {text for text, i in self._own.items() if self._model.IsControl(i)}
        special |= {text for text in specials if text in self._own or text in extra}
        ids = {**self._own, **extra}
        self.special_ids: Mapping[str, int] = {text: ids[text] for text in special}
        self.special_pattern = _pattern(self.special_ids)
        # Not special, but no piece of the model: always read as that token.
        always = {text: i for text, i in extra.items() if text not in special}
        self._added_ids = {**self.special_ids, **always}
        self._added_texts = {i: text for text, i in self._added_ids.items()}
        self._patterns = _pattern(always), _pattern(self._added_ids)
        own_ids = {
            "bos": self._model.bos_id(),
            "eos": self._model.eos_id(),
            "pad": self._model.pad_id(),
        }
        self.own_ids: Mapping[str, int] = {k: i for k, i in own_ids.items() if i >= 0}
        self.vocab_size: int = max([size - 1, *self._added_texts]) + 1

    def encode(
        self, text: str, specials: bool = False, continues: bool = False
    ) -> list[int]:
        """See Tokenizer.encode."""
        ids: list[int] = []
        start = 0
        for found in self._patterns[specials].finditer(text):
            ids += self._encode_text(text[start : found.start()], start, continues)
            ids.append(self._added_ids[found[0]])
            start = found.end()
        return ids + self._encode_text(text[start:], start, continues)

    def _encode_text(self, text: str, start: int, continues: bool) -> list[int]:
        """Ids of text that stands at `start` and in which no added token is read."""
        prefix = not (continues and start == 0)
        if not self._prefix_each:
            prefix = prefix and start == 0 and not text.startswith((" ", "\u2581"))
        ids = (self._model if prefix else self._bare).Encode(text, return_type=int)
        # A user-defined piece is found wherever the text spells it. Where such a one
        # is special, its spelling is cut in two.
        spelt = {self.special_ids[name] for name in self.special_pattern.findall(text)}
        if not spelt.intersection(ids):
            return ids
        ids, start = [], 0
        for found in self.special_pattern.finditer(text):
            model = self._model if prefix and start == 0 else self._bare
            ids += model.Encode(text[start : found.start() + 1], return_type=int)
            start = found.start() + 1
        return ids + self._bare.Encode(text[start:], return_type=int)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """See Tokenizer.decode."""
        texts: list[str] = []
        run: list[int] = []
        model = self._model
        for token_id in ids:
            text = self._added_texts.get(token_id)
            if text is None:
                # A row of the embedding that stands for no token has no text.
                if 0 <= token_id < self._model.GetPieceSize():
                    run.append(int(token_id))
                continue
            texts.append(model.Decode(run, return_type=str))
            run = []
            if specials or text not in self.special_ids:
                texts.append(text)
            # What stands first loses the space that was put before it.
            first = self._prefix_each or not any(texts)
            model = self._model if first else self._bare
        texts.append(model.Decode(run, return_type=str))
        return "".join(texts)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written `text` in the vocabulary."""
        return self._added_ids.get(text, self._own.get(text))

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        if token_id in self._added_texts:
            return self._added_texts[token_id]
        in_model = 0 <= token_id < self._model.GetPieceSize()
        return self._model.IdToPiece(token_id) if in_model else None


def _pattern(texts: Mapping[str, int]) -> re.Pattern[str]:
    """A pattern that finds any of `texts`, the longest first; none if it is empty."""
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
