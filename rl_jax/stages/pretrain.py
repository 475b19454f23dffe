"""Pretraining: plain texts and whole conversations, every token of them learnt.

Nothing is left out for its length: what is longer than a row is cut into pieces, each
of which begins with the last token of the one before, so that every token but the first
of a text is predicted once. Pieces share rows, and none sees another.
"""

from collections.abc import Callable

from rl_jax import config as configs
from rl_jax.models.params import Params
from rl_jax.stages import inputs, supervised
from rl_jax.stages.context import Context


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    pieces = inputs.texts(stage, context.tokenizer, context.run.seed)
    return supervised.train(context, stage, base, pieces)
