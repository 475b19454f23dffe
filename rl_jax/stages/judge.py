"""A trained reward model that scores replies on the device, for other stages.

    judge = open_judge(context, stage.reward.model, f"{stage.prefix}reward.model")
    scores = judge.score([np.array([*prompt_ids, *completion_ids]), ...])

Legend: B rows of a micro-batch, T positions of a row.
"""

import json
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from rl_jax import checkpoint, reward_marker
from rl_jax.data.reply_rows import pack_groups
from rl_jax.errors import ConfigError
from rl_jax.mesh import BATCH_AXES
from rl_jax.models import reward_head
from rl_jax.models.reward_head import RewardParams
from rl_jax.models.spec import ModelSpec
from rl_jax.reward_learner import RewardLearner, make_reward_learner, to_device
from rl_jax.reward_marker import Marker
from rl_jax.stages import context as contexts
from rl_jax.stages import weights
from rl_jax.stages.context import Context
from rl_jax.stages.reading import TOKENIZER_FOLDER
from rl_jax.stages.run_state import CHECKPOINTS

# Rows in one dispatch, at least, and the shortest row: powers of two from here on, so
# that there are few programs whatever the lengths.
_ROWS = 8
_SHORTEST_ROW = 64


class Judge:
    """A reward model with its weights on the device.

    Attributes:
        name: where it came from, for people.
        marker: what its scores were over the replies that it was trained on.
    """

    def __init__(
        self,
        name: str,
        params: RewardParams,
        model: ModelSpec,
        mesh: Mesh,
        marker: Marker,
        row_tokens: int = 0,
    ):
        self.name, self.marker = name, marker
        self._params, self._mesh = params, mesh
        self._row_tokens = row_tokens
        self._learner = make_reward_learner(model)

    def score(self, pieces: Sequence[np.ndarray]) -> list[float]:
        """One score a reply, in order: mean 0, spread 1 over what it was trained on.

        To be called under the mesh of the run, by every process with the same pieces.

        Args:
            pieces: int32 ids of prompt and completion, the token that ended it, if it
                did end, included: a reply is scored at its last token.

        Raises:
            ValueError: if a piece is empty, or longer than a row of `row_tokens`.
        """
        raw = raw_scores(
            self._learner, self._params, pieces, self._mesh, self._row_tokens
        )
        return [self.marker.standardised(score) for score in raw]


def open_judge(context: Context, name: str, key: str, *, row_tokens: int = 0) -> Judge:
    """Reads a reward model.

    Args:
        name: a reward_model stage of this run that is finished, the work folder of
            one, or either with @STEP for one of its checkpoints.
        key: of the config, without "config.", for messages.
        row_tokens: the longest piece to come, so that one program is compiled and no
            more; 0: one for each power of two that is needed.

    Raises:
        ConfigError: if there is no reward model of that name, or it was trained with
            another tokenizer; nothing is compiled before.
    """
    folder, step = weights.stage_folder(context, name)
    if folder is None:
        raise ConfigError(
            f"config.{key}={name!r} is neither an earlier stage nor a folder with "
            f"{CHECKPOINTS}/.\nExpected a stage of kind reward_model, or its work "
            "folder."
        )
    marker = reward_marker.read(folder, key)
    model = context.model
    if context.workdir not in (folder, folder.parent):
        model = _model_elsewhere(context, folder, key)
    abstract = reward_head.abstract_params(model, context.mesh)
    params = checkpoint.load_params(folder / CHECKPOINTS, abstract, step=step)
    return Judge(name, params, model, context.mesh, marker, row_tokens)


def _model_elsewhere(context: Context, folder: pathlib.Path, key: str) -> ModelSpec:
    """The model of another run's work folder, whose ids must mean what ours do."""
    is_flat = (folder / contexts.MODEL_FILE).is_file()
    root = folder if is_flat else folder.parent
    ours = _token_files(context.workdir / TOKENIZER_FOLDER)
    theirs = _token_files(root / TOKENIZER_FOLDER)
    if ours != theirs:
        raise ConfigError(
            f"config.{key} names {str(folder)!r}, whose tokenizer is not that of this "
            "run: the same ids would be other texts.\nExpected a reward model that "
            "began from the same model; or train one in a stage of this run."
        )
    return contexts.read_model_file(root)


def _token_files(folder: pathlib.Path) -> dict[str, object]:
    """What tells two tokenizers apart: the vocabulary's files."""
    found: dict[str, object] = {}
    if (path := folder / "tokenizer.json").is_file():
        found["json"] = json.loads(path.read_text())
    elif (path := folder / "tokenizer.model").is_file():
        found["model"] = path.read_bytes()
    return found


def raw_scores(
    learner: RewardLearner,
    params: RewardParams,
    pieces: Sequence[np.ndarray],
    mesh: Mesh,
    row_tokens: int = 0,
) -> list[float]:
    """What the head says of each piece, in order; see `Judge.score`."""
    if not pieces:
        return []
    if not all(len(piece) for piece in pieces):
        raise ValueError("a reply without a token cannot be scored")
    T = row_tokens or _SHORTEST_ROW
    longest = max(map(len, pieces))
    while not row_tokens and longest > T:
        T *= 2
    parts = int(np.prod([mesh.shape[axis] for axis in BATCH_AXES]))
    B = -(-_ROWS // parts) * parts
    # Dispatched one after the other, fetched at the end.
    waiting = []
    for rows in pack_groups([[piece] for piece in pieces], B, T, len(pieces)):
        waiting.append((rows, learner.score(params, to_device(rows, mesh))))
    scores = [0.0] * len(pieces)
    for rows, score_BT in waiting:
        fetched_BT = jax.device_get(score_BT)
        for group, [end] in zip(rows.groups, rows.last, strict=True):
            scores[group] = float(fetched_BT[end])
    return scores
