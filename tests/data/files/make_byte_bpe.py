"""Writes byte_bpe.json, a tokenizer.json built like Llama 3's, but tiny.

Byte-level BPE behind Llama 3's splitting pattern, special tokens of two families, and
a post-processor that puts <|begin_of_text|> in front when it is asked to.

Run:  python tests/data/files/make_byte_bpe.py
"""

import pathlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SPECIALS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "the user asks and the assistant answers\n\nsystem user assistant",
    "What is 12 plus 30?\n\nIt is 42.",
]


def main():
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens(["<think>"])  # Added, but not special.
    bos = SPECIALS[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    # Lengths left over from somebody's training, which a reader must switch off.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    file = pathlib.Path(__file__).parent / "byte_bpe.json"
    file.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
