"""Writes templates/*.json: what transformers renders with each chat template.

Every conversation of conversations.json with every template, with and without the
start of the assistant's next turn; or that the template refuses it, and with which
words. The special tokens are those of the tokenizer that is named for the template in
sources.json. The clock of `strftime_now` stands at the day of rl_jax's.

Run:  python tests/data/make_template_references.py [FOLDER WITH OTHER TEMPLATES]
Needs transformers 5.24; the tests do not. Templates of another folder are compared
here and now, and nothing is written.
"""

import datetime
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "templates"
TOKENIZERS = pathlib.Path(__file__).parent / "tokenizers"


class StandingClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def cases():
    """name -> (messages, what else the template is given)."""
    content = json.loads((FOLDER / "conversations.json").read_text("utf-8"))
    for name, case in content["conversations"].items():
        tools = content["tools"] if case.get("tools") else None
        for prompt in (False, True):
            given = {**case.get("variables", {}), "add_generation_prompt": prompt}
            label = f"{name}, to go on" if prompt else name
            yield label, case["messages"], {**given, "tools": tools}


def rendered(tokenizer, template, messages, given):
    try:
        return tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, **given
        )
    except Exception as error:  # Whatever a template does to a value.
        return {"refused": f"{type(error).__name__}: {error}"}


def compare(folder, tokenizer):
    """Prints where rl_jax renders a folder's templates in another way."""
    from rl_jax.data.template import render
    from rl_jax.errors import ConfigError

    count = 0
    for file in sorted(folder.glob("*.jinja")):
        template = file.read_text("utf-8")
        for name, messages, given in cases():
            theirs = rendered(tokenizer, template, messages, given)
            try:
                names = tokenizer.special_tokens_map
                ours = render(template, messages, **{**names, **given})
            except ConfigError as error:
                ours = {"refused": str(error)}
            same = type(ours) is dict if type(theirs) is dict else ours == theirs
            count += 1
            if not same:
                print(f"{file.name}, {name}:\n  {ours!r}\n  {theirs!r}")
    print(f"{count} renderings compared")


def main():
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.utils.chat_template_utils.datetime = StandingClock
    load = transformers.AutoTokenizer.from_pretrained
    if len(sys.argv) > 1:
        compare(pathlib.Path(sys.argv[1]), load(TOKENIZERS / "llama3"))
        return
    for name, source in json.loads((FOLDER / "sources.json").read_text()).items():
        tokenizer = load(TOKENIZERS / source["tokenizers"][0])
        template = (FOLDER / f"{name}.jinja").read_text("utf-8")
        content = {
            "transformers": transformers.__version__,
            "names": tokenizer.special_tokens_map,
            "renderings": {
                label: rendered(tokenizer, template, messages, given)
                for label, messages, given in cases()
            },
        }
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
        refused = sum(type(r) is dict for r in content["renderings"].values())
        print(f"{name}: {len(content['renderings'])}, {refused} refused")


if __name__ == "__main__":
    main()
