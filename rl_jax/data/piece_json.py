"""The tokenizer.json of a tokenizer that was trained here, for transformers.

`tokenizer.train` leaves a SentencePiece model. transformers 5 reads one only where
sentencepiece and protobuf are installed, and its LlamaTokenizer then drops characters
that are not in the vocabulary, where SentencePiece has the unknown token.
"""

import json
import pathlib

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space


def transformers_files(folder: str | pathlib.Path) -> dict[str, bytes]:
    """Files, by name, that give transformers the ids that `folder` has here.

    None for a folder that came with a model: there, its own files say what is right.

    Args:
        folder: the tokenizer/ of a work folder.
    """
    folder = pathlib.Path(folder)
    brought = ("config.json", "tokenizer.json")
    if not (folder / "tokenizer.model").is_file() or any(
        (folder / name).is_file() for name in brought
    ):
        return {}
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    # Of the classes that read tokenizer.json, the one that takes it as it is.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {
        "tokenizer.json": piece_json(folder / "tokenizer.model").encode(),
        "tokenizer_config.json": text.encode(),
    }


def piece_json(file: pathlib.Path) -> str:
    """tokenizer.json of a tokenizer.model that `tokenizer.train` wrote.

    A merge of SentencePiece is any two pieces that make a third one; the one with the
    best score goes first, and of equal ones the leftmost. Runs of unknown characters
    are one token. No text is normalised, no space put in front.
    """
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ids = range(pieces.GetPieceSize())
    vocab = {pieces.IdToPiece(i): i for i in ids}
    control = [pieces.IdToPiece(i) for i in ids if pieces.IsControl(i)]
    unknown = pieces.IdToPiece(pieces.unk_id())
    plain = {text: i for text, i in vocab.items() if text not in (*control, unknown)}
    merges = [
        (-pieces.GetScore(i), plain[text[:cut]], text[:cut], text[cut:])
        for text, i in plain.items()
        for cut in range(1, len(text))
        if text[:cut] in plain and text[cut:] in plain
    ]
    model = models.BPE(
        vocab=vocab,
        merges=[(left, right) for *_, left, right in sorted(merges)],
        unk_token=unknown,
        fuse_unk=True,
    )
    out = tokenizers.Tokenizer(model)
    out.normalizer = normalizers.Replace(" ", SPACE)
    out.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    out.add_special_tokens(
        [
            tokenizers.AddedToken(text, normalized=False, special=True)
            for text in control
        ]
    )
    return out.to_str(pretty=True)
