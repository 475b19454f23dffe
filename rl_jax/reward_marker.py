"""What says that a work folder holds a reward model, and what its scores are like.

`reward_model.json` lies beside the stage's checkpoints, where a policy has none. It can
be looked for without jax, before anything starts.
"""

import dataclasses
import json
import os
import pathlib

from rl_jax.errors import ConfigError

NAME = "reward_model.json"


@dataclasses.dataclass(frozen=True)
class Marker:
    """The scores of the replies that a reward model was trained on.

    Attributes:
        form: "ranking" or "pointwise", the loss it was trained with.
        mean, std: of their scores, in the units of the head.
        num_replies: how many replies these are of.
    """

    form: str
    mean: float
    std: float
    num_replies: int

    def standardised(self, score: float) -> float:
        """A score with mean 0 and spread 1 over the replies trained on.

        InstructGPT (arXiv:2203.02155, section 3.5) shifts the scores so that those of
        its demonstrations have mean 0 before it trains on them, as the loss of pairs
        leaves the level open. The spread is ours: without it the weight that a reward
        should have would depend on how long its model was trained. Where all scores
        are the same they are only shifted.
        """
        return (score - self.mean) / (self.std or 1.0)


def write(folder: str | os.PathLike, marker: Marker) -> None:
    """Marks a work folder, whole or not at all."""
    path = pathlib.Path(folder) / NAME
    unfinished = path.with_suffix(".json.tmp")
    unfinished.write_text(json.dumps(dataclasses.asdict(marker), indent=1) + "\n")
    os.replace(unfinished, path)


def read(folder: str | os.PathLike, key: str) -> Marker:
    """The marker of a work folder.

    Args:
        key: of the config that names the folder, without "config.", for messages.

    Raises:
        ConfigError: if there is none, so that it holds no reward model.
    """
    path = pathlib.Path(folder) / NAME
    try:
        return Marker(**json.loads(path.read_text()))
    except OSError:
        wrong = f"has no {NAME}: there is no reward model with a head in it"
    except (ValueError, TypeError):
        wrong = f"has a {NAME} that cannot be read"
    raise ConfigError(
        f"config.{key} names {str(folder)!r}, which {wrong}.\nExpected a finished "
        "stage of kind reward_model, or its work folder."
    )
