"""Supervised fine-tuning: conversations that fit a row each.

Learnt are the assistant's turns with the token that ends them, as a policy samples
them; with supervised.learn=everything all of a conversation. Longer ones are left out.
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
    talks = inputs.conversations(stage, context.tokenizer, context.run.seed)
    return supervised.train(context, stage, base, talks)
