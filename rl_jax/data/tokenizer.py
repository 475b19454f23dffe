"""The tokenizer of a model folder: its ids, its special tokens, where it stops.

`load` reads a folder as Hugging Face lays it out; `train` makes one for a small task.
Chat conversations become ids in chat.py.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece

from rl_jax.data.template import render
from rl_jax.data.token_models import JsonModel, PieceModel
from rl_jax.errors import ConfigError

# Tokens that a folder names, each as NAME_token.
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back, with what the model's folder says of its tokens.

    Attributes:
        model: the vocabulary.
        bos_id, eos_id, pad_id: None where the folder names no such token.
        stop_ids: tokens that end a completion, ascending: those of
            generation_config.json, the end-of-sequence token, and what the chat
            template writes after an assistant's turn.
        chat_template: Jinja source, "" if the model has none.
        add_bos: the folder asks for `bos_id` before every text (`add_bos_token`).
        named_texts: what a chat template reads as `bos_token`, `eos_token`,
            `pad_token`, `unk_token`, as far as the folder names them.
    """

    model: JsonModel | PieceModel
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    stop_ids: tuple[int, ...]
    chat_template: str
    add_bos: bool
    named_texts: Mapping[str, str]

    @property
    def vocab_size(self) -> int:
        """Largest id + 1. A model's embedding may have more rows."""
        return self.model.vocab_size

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Special tokens, as they are written, and their ids."""
        return self.model.special_ids

    def encode(
        self, text: str, specials: bool = False, continues: bool = False
    ) -> list[int]:
        """Ids of `text` and of nothing else: a BOS token is never added.

        Args:
            text: any string.
            specials: False (default) makes text that spells a special token into
                ordinary tokens, as is right for text from data or a model. True reads
                it as that token, as is right for a rendered chat template.
            continues: more text stands before `text`. Tokenizers that put a space in
                front of a text then do not.
        """
        return self.model.encode(text, specials, continues)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """Text of `ids`; special tokens leave no text unless `specials`.

        Bytes that are not UTF-8 come out as U+FFFD, ids outside the vocabulary as "".
        """
        return self.model.decode(ids, specials)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written `text` in the vocabulary."""
        return self.model.token_id(text)

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        return self.model.token_text(token_id)

    @property
    def bos_text(self) -> str:
        """`bos_token` of a chat template, "" if there is none."""
        return "" if self.bos_id is None else self.token_text(self.bos_id) or ""

    @property
    def eos_text(self) -> str:
        """`eos_token` of a chat template, "" if there is none."""
        return "" if self.eos_id is None else self.token_text(self.eos_id) or ""


def load(folder: str | pathlib.Path, *, chat_template: str = "") -> Tokenizer:
    """The tokenizer of a Hugging Face folder: tokenizer.json, else tokenizer.model.

    Args:
        folder: holds one of the two, and as far as the model needs them
            tokenizer_config.json, special_tokens_map.json, added_tokens.json,
            chat_template.jinja, generation_config.json, config.json.
        chat_template: Jinja source to use instead of the folder's.

    Raises:
        ConfigError: if a file is missing or cannot be read, a token that it names is
            not in the vocabulary, or nothing says where the model stops.
    """
    folder = pathlib.Path(folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"The tokenizer folder {folder} does not exist.")
    config = {
        **_read_json(folder / "special_tokens_map.json"),
        **_read_json(folder / "tokenizer_config.json"),
    }
    model_config = _read_json(folder / "config.json")
    generation = {**model_config, **_read_json(folder / "generation_config.json")}
    model = _load_model(folder, config, model_config)
    ids = {
        name: _named_id(folder, model, config, model_config, name)
        for name in ("bos", "eos", "pad")
    }
    texts = {name: _content(config.get(f"{name}_token")) for name in _NAMED}
    for name, token_id in ids.items():
        texts[name] = None if token_id is None else model.token_text(token_id)
    tokenizer = Tokenizer(
        model=model,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        pad_id=ids["pad"],
        stop_ids=(),
        chat_template=chat_template or _folder_template(folder, config),
        add_bos=bool(config.get("add_bos_token", False)),
        named_texts={f"{name}_token": text for name, text in texts.items() if text},
    )
    stop_ids = _id_list(generation.get("eos_token_id"))
    stop_ids += [tokenizer.eos_id, *_turn_end_ids(tokenizer)]
    found = sorted({stop_id for stop_id in stop_ids if stop_id is not None})
    if not found:
        raise ConfigError(
            f"Nothing in {folder} says which token ends a completion.\n"
            'Write {"eos_token_id": ID} to its generation_config.json.'
        )
    return dataclasses.replace(tokenizer, stop_ids=tuple(found))


def describe_stops(tokenizer: Tokenizer) -> str:
    """The tokens that end a completion, for people: "<|im_end|> (2), ..."."""
    texts = ((tokenizer.token_text(i) or "no token", i) for i in tokenizer.stop_ids)
    return ", ".join(f"{text} ({i})" for text, i in texts)


def _load_model(
    folder: pathlib.Path, config: Mapping[str, Any], model_config: Mapping[str, Any]
) -> JsonModel | PieceModel:
    decoder = config.get("added_tokens_decoder") or {}
    added = {entry["content"]: int(i) for i, entry in decoder.items()}
    added = {**_read_json(folder / "added_tokens.json"), **added}
    specials = {entry["content"] for entry in decoder.values() if entry.get("special")}
    specials |= {_content(config.get(f"{name}_token")) for name in _NAMED}
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(name) or []
        tokens = tokens.values() if isinstance(tokens, Mapping) else tokens
        specials |= {_content(token) for token in tokens}
    names = sorted(filter(None, specials))
    if (folder / "tokenizer.json").is_file():
        return JsonModel(folder / "tokenizer.json", added=added, specials=names)
    if (folder / "tokenizer.model").is_file():
        # Hugging Face's name for a space before each text. Where the config leaves it
        # out, transformers decides by the kind of model.
        legacy = config.get("legacy", model_config.get("model_type") == "mistral")
        return PieceModel(
            folder / "tokenizer.model",
            added=added,
            specials=names,
            prefix_each=bool(legacy),
        )
    names = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise ConfigError(
        f"{folder} has neither tokenizer.json nor tokenizer.model.\nIt holds: {names}."
    )


def _named_id(
    folder: pathlib.Path,
    model: JsonModel | PieceModel,
    config: Mapping[str, Any],
    model_config: Mapping[str, Any],
    name: str,
) -> int | None:
    """The id of the token that the folder calls `name`_token."""
    if f"{name}_token" not in config:
        ids = _id_list(model_config.get(f"{name}_token_id"))
        return ids[0] if ids else model.own_ids.get(name)
    token = _content(config[f"{name}_token"])
    if token is None:  # null: the model has none, whatever its config.json says.
        return None
    token_id = model.token_id(token)
    if token_id is None:
        raise ConfigError(
            f"{folder} says {name}_token is {token!r}, which is not in its vocabulary."
        )
    return token_id


def _content(token: Any) -> str | None:
    """A token as configs write it: its text, or a mapping of that and its flags."""
    return token.get("content") if isinstance(token, Mapping) else token


def _id_list(ids: Any) -> list[int | None]:
    """Configs write one id, a list of ids, or null."""
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list) else [ids]


def _folder_template(folder: pathlib.Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    template = config.get("chat_template") or ""
    if isinstance(template, str):
        return template
    named = {entry["name"]: entry["template"] for entry in template}
    if "default" in named:
        return named["default"]
    raise ConfigError(
        f"{folder} has chat templates {sorted(named)}, but none named default.\n"
        "Write the one to use to chat_template.jinja in that folder."
    )


def _turn_end_ids(tokenizer: Tokenizer) -> set[int]:
    """The special tokens that follow an assistant's text in the chat template.

    There are two where a template ends the last turn unlike the others. Where it ends
    none, it is the token that the next turn begins with.
    """
    if not tokenizer.chat_template:
        return set()
    reply = "qwertyuiop"
    user = {"role": "user", "content": "a"}
    talk = [user, {"role": "assistant", "content": reply}]
    found = set()
    for messages in (talk, [*talk, user]):
        try:
            text = render(
                tokenizer.chat_template,
                messages,
                add_generation_prompt=False,
                **tokenizer.named_texts,
            )
        except ConfigError:
            if messages is talk:
                raise
            continue  # A template for one question only.
        _, before, after = text.rpartition(reply)
        token = tokenizer.model.special_pattern.match(after.lstrip())
        if before and token:
            found.add(tokenizer.special_ids[token[0]])
    return found


def _read_json(file: pathlib.Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} should hold a JSON object.")
    return content


def train(
    texts: Iterable[str],
    folder: str | pathlib.Path,
    *,
    vocab_size: int,
    chat_template: str,
    specials: Sequence[str] = (),
) -> Tokenizer:
    """Trains a SentencePiece tokenizer and writes its folder.

    Byte-pair encoding that keeps text as it is: no normalisation, no space put in
    front, digits one by one, newlines and runs of spaces as ordinary text. What is
    made only of characters in `texts` decodes to itself, except U+2581, which is how
    SentencePiece writes a space. Other characters become the unknown token.
    The same texts give the same bytes.

    Args:
        texts: what to learn the vocabulary from.
        folder: made if need be; gets tokenizer.model, tokenizer_config.json and
            generation_config.json.
        vocab_size: at most so many tokens; small tasks have fewer.
        chat_template: Jinja source; it may use `bos_token` and `eos_token`.
        specials: further special tokens, such as those that the template writes.
            Ids 0 to 3 are <pad>, <bos>, <eos>, <unk>; these follow in order.

    Raises:
        ConfigError: if there is no text or `vocab_size` is too small for its
            characters.
    """
    folder = pathlib.Path(folder).expanduser()
    for name in ("tokenizer.json", "chat_template.jinja"):
        if (folder / name).exists():  # load() would prefer it to what is written.
            raise ConfigError(f"{folder} already holds another tokenizer: {name}.")
    proto = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts),
            model_writer=proto,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            byte_fallback=False,
            split_digits=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=2**30,  # Longer ones would be left out in silence.
            num_threads=1,
            # Control symbols are never found in text; user-defined symbols are.
            control_symbols=list(specials),
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece="<pad>",
            bos_piece="<bos>",
            eos_piece="<eos>",
            unk_piece="<unk>",
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"Cannot train a tokenizer of vocab_size={vocab_size}: {error}"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(proto.getvalue())
    named = {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    named |= {text: 4 + i for i, text in enumerate(specials)}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "LlamaTokenizer",
            "legacy": False,
            "add_bos_token": False,
            "add_eos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "pad_token": "<pad>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "added_tokens_decoder": {
                str(i): {"content": text, "special": True} for text, i in named.items()
            },
            "chat_template": chat_template,
        },
    )
    generation = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": [2]}
    _write_json(folder / "generation_config.json", generation)
    tokenizer = load(folder)  # Finds the end of a turn in the template.
    generation["eos_token_id"] = list(tokenizer.stop_ids)
    _write_json(folder / "generation_config.json", generation)
    return tokenizer


def _write_json(file: pathlib.Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
