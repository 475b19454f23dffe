"""transformers loads what is exported, and finds the same ids and logits.

Needs a Python with torch and transformers: this one, or the one that the environment
variable TRANSFORMERS_PYTHON names.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny_families
import tiny_stage as tiny
from rl_jax import convert
from rl_jax.data import chat, tokenizer
from rl_jax.load import load
from rl_jax.mesh import sharding
from rl_jax.models import decoder
from rl_jax.stages import chain

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
ASK = pathlib.Path(__file__).parent / "ask_transformers.py"
# Both are float32, and sum in another order: logits reach 11.
ATOL = 2e-4
MESSAGES = [{"role": "user", "content": "Start with 9, minus 4."}]
TEXTS = [
    "Start with 9, minus 4.",
    " two  spaces, a\nnew line\n\n and 1234+56=",
    "\\boxed{12} <|user|>",
    "characters that it has never seen: 日本 é🙂, and ▁",
    "",
]
TOKEN_BT = np.random.default_rng(0).integers(0, 64, (3, 17))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


def converted_twice(name, folder, files):
    """A model of a family, with a tokenizer, to a checkpoint and back."""
    source = tiny_families.write(name, folder / "in")
    for path in files.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            (source / path.name).write_bytes(path.read_bytes())
    for path, out in (("in", "kept"), ("kept", "out")):
        argv = [f"--model={folder / path}", f"--out={folder / out}"]
        assert convert.main(argv) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def python():
    """A Python that has transformers."""
    code = "import torch, transformers"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"{PYTHON} has no transformers ({reason}): TRANSFORMERS_PYTHON")
    return PYTHON


@pytest.fixture(scope="module")
def answers(python, workdir, tmp_path_factory):
    """What transformers says of every folder, asked once."""
    base = tmp_path_factory.mktemp("transformers")
    exported = workdir / chain.EXPORT
    folders = {"quickstart": (exported, TOKEN_BT)}
    for name in tiny_families.NAMES:
        folder = converted_twice(name, base / name, exported)
        folders[name] = (folder, tiny_families.expected(name)[0])
    questions = {
        name: {
            "folder": str(folder),
            "texts": TEXTS,
            "messages": MESSAGES,
            "tokens": token_BT.tolist(),
        }
        for name, (folder, token_BT) in folders.items()
    }
    (base / "questions.json").write_text(json.dumps(questions))
    done = subprocess.run(
        [python, str(ASK), str(base / "questions.json"), str(base / "answers.npz")],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = dict(np.load(base / "answers.npz"))
    for name in folders:
        assert str(found[f"{name}/report"]) == "{}"
    return found


def our_logits(folder, token_BT):
    """Float32 [B, T, V] of whole rows, each one sample."""
    mesh = tiny.one_device()
    loaded = load(folder, mesh)
    position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)
    rows = (token_BT, position_BT, np.ones_like(token_BT))

    @jax.jit
    def logits(params, token_BT, position_BT, segment_BT):
        hidden_BTD = decoder.hidden_states(
            params, token_BT, position_BT, segment_BT, loaded.model
        )
        head_VD = decoder.gather_head(params, loaded.model)
        return jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD)

    with jax.set_mesh(mesh):
        batch = sharding(mesh, "batch", "time")
        placed = (jax.device_put(np.asarray(x, np.int32), batch) for x in rows)
        return np.asarray(logits(loaded.params, *placed))


def test_the_quickstarts_export_is_read_as_we_read_it(answers, workdir):
    text = tokenizer.load(workdir / "tokenizer")
    for i, asked in enumerate(TEXTS):
        ids = answers[f"quickstart/ids_{i}"].tolist()
        assert ids == text.encode(asked, True), asked
    ids = answers["quickstart/chat"].tolist()
    assert ids == chat.prompt_ids(text, MESSAGES)
    assert str(answers["quickstart/dtype"]) == "torch.float32"
    found, want = answers["quickstart/logits_BTV"], our_logits(workdir, TOKEN_BT)
    np.testing.assert_allclose(found, want, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_every_family_that_was_converted_twice_has_its_logits(answers, name):
    want = tiny_families.expected(name)[1]
    found = answers[f"{name}/logits_BTV"]
    np.testing.assert_allclose(found, want, rtol=0, atol=ATOL)
