"""What transformers makes of model folders: ids of texts, and logits of tokens.

    python tests/ask_transformers.py QUESTIONS.json ANSWERS.npz

Not a test: tests start it, with a Python that has torch and transformers, which
nothing else here needs. QUESTIONS.json maps a name to {"folder", "texts", "messages"
(a conversation for the chat template), "tokens" ([B, T])}. The answers are
NAME/ids_0, NAME/ids_1, ..., NAME/chat, NAME/dtype (that the weights are loaded in
unless another is asked for), NAME/logits_BTV (float32, computed in it) and
NAME/report (what transformers missed, or had no use for).
"""

import json
import sys

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    AutoTokenizer,
)


def answers(folder: str, texts: list, messages: list, tokens: list) -> dict:
    text = AutoTokenizer.from_pretrained(folder)

    def ids(x: str) -> np.ndarray:
        return np.array(text.encode(x, add_special_tokens=False), np.int32)

    found = {f"ids_{i}": ids(x) for i, x in enumerate(texts)}
    kinds = {"tokenize": False, "add_generation_prompt": True}
    found["chat"] = ids(text.apply_chat_template(messages, **kinds))
    found["dtype"] = np.array(str(AutoModelForCausalLM.from_pretrained(folder).dtype))
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=1
    )
    found["report"] = np.array(json.dumps({k: str(v) for k, v in report.items() if v}))
    with torch.no_grad():
        logits_BTV = model(torch.tensor(tokens)).logits
    return {**found, "logits_BTV": logits_BTV.numpy().astype(np.float32)}


def main(questions: str, answer: str) -> None:
    with open(questions, encoding="utf-8") as file:
        asked = json.load(file)
    found = {}
    for name, question in asked.items():
        own = answers(**question)
        found |= {f"{name}/{key}": value for key, value in own.items()}
    np.savez(answer, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
