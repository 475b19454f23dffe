"""Writes tokenizers/: a tiny tokenizer of each kind, and the ids that it should give.

Each is trained here on a few lines, with the normaliser, pre-tokenizer, decoder, model
settings and special tokens of the family it is named for, and laid out as that family's
folders are. Its `expected.json` has the ids that transformers gives for the strings in
hard_strings.json: "parsed" where special tokens are read from the text, "plain" where
they are not (only those that differ).

Run:  python tests/data/make_tokenizer_references.py
Needs transformers 5.24, sentencepiece and protobuf; the tests need none of them but
sentencepiece. The tokenizers come out the same each time.
"""

import io
import json
import pathlib
import sys

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
SPACE = "\u2581"
# The splitting patterns as the families' own files have them.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _REST
QWEN2 = _WORDS + r"|\p{N}" + _REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "You are a helpful assistant. The user asks and the assistant answers.\n\n",
    "system user model tool ipython <think>\nhm\n</think>\n\nIt is 42.<functions>",
    "What is 12 plus 30?\nAnswer: 12+30=42, so 3.14 > 2 and \\boxed{42}.\n\n\n\n",
    "def f(x):\n    return x + 1\n        y = [1, 2, 3]\n\thello world hello   world",
    '{"name": "add", "arguments": {"a": 12, "b": 30}} I\'m you\'re they\'ll don’t',
    "中文字符 中文 日本語 日本 한국어 Привет мир привет é è naïve e\u0301",
    "😀 😀 👍🏽 ½ ² שלום مرحبا हिन्दी",
]
LINES = [line for text in TEXTS * 4 for line in text.split("\n")]


def byte_level(*steps, specials, added=(), normalizer=None, **model):
    """Byte-level BPE: `steps` pre-tokenize, special tokens come after the rest."""
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.Sequence(list(steps))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        min_frequency=2,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tokenizer


def split(pattern):
    return (
        pre.Split(Regex(pattern), "isolated"),
        pre.ByteLevel(add_prefix_space=False, use_regex=False),
    )


def piece_model(**options):
    """A serialised SentencePiece model."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=proto,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
        **({"vocab_size": 420, "model_type": "bpe", "byte_fallback": True} | options),
    )
    return proto.getvalue()


def byte_fallback(specials, added, *, pre_tokenizer, normalizer, prefix, unk="<unk>"):
    """The tokenizer.json of a SentencePiece model: merges in the order of scores."""
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(piece_model(add_dummy_prefix=prefix))
    size = model.GetPieceSize()
    own = [i for i in range(size) if not (model.IsControl(i) or model.IsUnknown(i))]
    pieces = [*specials, *added, *(model.IdToPiece(i) for i in own)]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    scores = {model.IdToPiece(i): model.GetScore(i) for i in own}
    merges = [
        (-scores[piece], vocab[piece], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(left, right) for *_, left, right in sorted(merges)],
            unk_token=unk,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    last = [decoders.Strip(content=" ", left=1)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tokenizer


DEEPSEEK = [
    *["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"],
    *["<｜User｜>", "<｜Assistant｜>"],
]
DEEPSEEK_ADDED = [
    *["<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    *["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>"],
    *["<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
    "<｜tool▁sep｜>",
]
MISTRAL = [
    *["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"],
    *["[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"],
]
FAST = "PreTrainedTokenizerFast"
LLAMA_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def json_families():
    """name -> (tokenizer, tokenizer_class, model_type, what the folder says)."""
    yield (
        "llama3",
        byte_level(
            *split(LLAMA3),
            specials=[
                *["<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"],
                *[
                    "<|start_header_id|>",
                    "<|end_header_id|>",
                    "<|eom_id|>",
                    "<|eot_id|>",
                ],
                "<|python_tag|>",
            ],
            ignore_merges=True,
        ),
        FAST,
        "llama",
        {  # fmt: skip
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "generation": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
        },
    )
    yield (
        "smollm2",
        byte_level(
            pre.Digits(individual_digits=True),
            pre.ByteLevel(add_prefix_space=False, use_regex=True),
            specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"],
        ),
        FAST,
        "llama",
        {
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "add_bos_token": False,
        },
    )
    yield (
        "smollm3",
        byte_level(
            *split(LLAMA3),
            specials=[
                *["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"],
            ],
            added=["<think>", "</think>", "<tool_call>", "</tool_call>"],
            ignore_merges=True,
        ),
        FAST,
        "smollm3",
        {
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
        },
    )
    yield (
        "qwen2",
        byte_level(
            *split(QWEN2),
            specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            added=[
                *["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
                *["<think>", "</think>"],
            ],
            normalizer=normalizers.NFC(),
            continuing_subword_prefix="",
            end_of_word_suffix="",
        ),
        "Qwen2Tokenizer",
        "qwen2",
        {
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "add_bos_token": False,
            "generation": ["<|im_end|>", "<|endoftext|>"],
        },
    )
    yield (
        "olmo2",
        byte_level(
            *split(LLAMA3),
            specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
            added=["<|extra_id_0|>", "|||PHONE_NUMBER|||"],
        ),
        "GPT2Tokenizer",
        "olmo2",
        {
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|pad|>",
            "unk_token": "<|endoftext|>",
        },
    )
    yield (
        "mistral_nemo",
        byte_level(*split(TEKKEN), specials=MISTRAL, ignore_merges=True),
        FAST,
        "mistral",
        {**LLAMA_NAMES, "add_bos_token": True},
    )
    for name, pattern, kind in (("qwen", QWEN2, "qwen2"), ("llama", LLAMA3, "llama")):
        yield (
            f"deepseek_{name}",
            byte_level(
                *split(pattern),
                specials=DEEPSEEK,
                added=DEEPSEEK_ADDED,
                normalizer=normalizers.NFC() if name == "qwen" else None,
            ),
            "LlamaTokenizerFast",
            kind,
            {
                "bos_token": DEEPSEEK[0],
                "eos_token": DEEPSEEK[1],
                "pad_token": DEEPSEEK[1],
                "add_bos_token": True,
                "legacy": True,
            },
        )
    yield (
        "glm4",
        byte_level(
            *split(LLAMA3),
            specials=[
                *["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>"],
                *["<|assistant|>", "<|observation|>"],
            ],
            added=["<think>", "</think>", "/nothink", "<tool_call>", "</tool_call>"],
        ),
        FAST,
        "glm4_moe",
        {
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "generation": ["<|endoftext|>", "<|user|>", "<|observation|>"],
        },
    )
    yield (
        "gemma",
        byte_fallback(
            [
                "<pad>",
                "<eos>",
                "<bos>",
                "<unk>",
                "<mask>",
                "<start_of_turn>",
                "<end_of_turn>",
            ],
            ["\n\n", SPACE * 2, "\t\t", "<table>"],
            pre_tokenizer=pre.Split(" ", "merged_with_previous"),
            normalizer=normalizers.Replace(" ", SPACE),
            prefix=False,
        ),
        "GemmaTokenizer",
        "gemma2",
        {  # fmt: skip
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "add_bos_token": True,
            "generation": ["<eos>", "<end_of_turn>"],
        },
    )
    yield (
        "mistral",
        byte_fallback(
            MISTRAL,
            [],
            pre_tokenizer=pre.Metaspace(SPACE, prepend_scheme="first", split=False),
            normalizer=None,
            prefix=True,
        ),
        "LlamaTokenizer",
        "mistral",
        {
            **LLAMA_NAMES,
            "add_bos_token": True,
            "legacy": False,
        },
    )
    yield (
        "mistral_prepend",
        byte_fallback(
            MISTRAL[:3],
            [],
            pre_tokenizer=None,
            normalizer=normalizers.Sequence(
                [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
            ),
            prefix=True,
        ),
        "LlamaTokenizer",
        "mistral",
        {
            **LLAMA_NAMES,
            "add_bos_token": True,
            "legacy": True,
        },
    )


def piece_families():
    """name -> (tokenizer.model, model_type, what the folder says)."""
    controls = ["[INST]", "[/INST]"]
    bpe = piece_model(control_symbols=controls)
    names = {**LLAMA_NAMES, "add_bos_token": True}
    special = {"0": "<unk>", "1": "<s>", "2": "</s>", "3": "[INST]", "4": "[/INST]"}
    decoder = {i: {"content": text, "special": True} for i, text in special.items()}
    names["added_tokens_decoder"] = decoder
    yield "piece_bpe", bpe, "mistral", {**names, "legacy": False}
    yield "piece_bpe_legacy", bpe, "mistral", {**names, "legacy": True}
    yield "piece_bpe_unsaid", bpe, "mistral", names
    # As somebody's training adds tokens: beyond the model's own.
    size = sentencepiece.SentencePieceProcessor(model_proto=bpe).GetPieceSize()
    more = {
        str(size): {"content": "<|im_end|>", "special": True},
        str(size + 1): {"content": "<think>", "special": False},
    }
    yield (
        "piece_bpe_added",
        bpe,
        "mistral",
        {
            **names,
            "legacy": False,
            "added_tokens_decoder": {**decoder, **more},
        },
    )
    yield (
        "piece_bpe_bare",
        piece_model(add_dummy_prefix=False, control_symbols=controls),
        "mistral",
        {**names, "legacy": False},
    )
    unigram = piece_model(
        model_type="unigram", vocab_size=380, control_symbols=controls
    )
    yield "piece_unigram", unigram, "mistral", {**names, "legacy": False}


def write(name, model, class_name, model_type, config):
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    stops = config.pop("generation", None)
    if isinstance(model, bytes):
        (folder / "tokenizer.model").write_bytes(model)
    else:
        text = model.to_str(pretty=False)
        (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = {"tokenizer_class": class_name, **config}
    dump(folder / "tokenizer_config.json", config)
    dump(folder / "config.json", {"model_type": model_type})
    if stops and not isinstance(model, bytes):
        ids = [model.token_to_id(stop) for stop in stops]
        dump(folder / "generation_config.json", {"eos_token_id": ids})


def dump(file, content):
    text = json.dumps(content, ensure_ascii=False, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def write_expected(folder):
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.logging.set_verbosity_error()
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    strings = json.loads((FOLDER / "hard_strings.json").read_text("utf-8"))
    parsed, plain = [], {}
    for number, text in enumerate(strings):
        options = {"add_special_tokens": False}
        ids = theirs(text, **options)["input_ids"]
        parsed.append(ids)
        unread = theirs(text, split_special_tokens=True, **options)["input_ids"]
        if unread != ids:
            plain[str(number)] = unread
    expected = {
        "transformers": transformers.__version__,
        "class": type(theirs).__name__,
        "parsed": parsed,
        "plain": plain,
    }
    text = json.dumps(expected, separators=(",", ":"))
    (folder / "expected.json").write_text(text + "\n")


def main():
    for name, model, class_name, model_type, config in json_families():
        write(name, model, class_name, model_type, config)
    for name, model, model_type, config in piece_families():
        write(name, model, "LlamaTokenizer", model_type, config)
    for folder in sorted(FOLDER.iterdir()):
        if folder.is_dir():
            write_expected(folder)
            print(folder.name, file=sys.stderr)


if __name__ == "__main__":
    main()
