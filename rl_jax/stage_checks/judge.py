"""What `reward.model` must name, in whatever kind of stage: a reward model."""

import os

from rl_jax import dag, reward_marker, schema
from rl_jax.config_keys import Run, StageConfig
from rl_jax.faults import fault
from rl_jax.kinds import KINDS


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError if it names neither a stage nor a folder with such a model.

    Whether a stage that it names makes one is for dag.py.
    """
    name, key = stage.reward.model, f"{stage.prefix}reward.model"
    names = [one.name for one in run.stages]
    bare = dag.without_step(name)
    if not name or bare in names:
        return
    folder = name if os.path.isdir(name) else bare
    if not os.path.isdir(folder):
        known = [x.name for x in run.stages if KINDS[x.kind].makes == "reward model"]
        raise fault(
            f"config.{key} is {name!r}, expected a reward_model stage of this run "
            f"({', '.join(known) or 'there is none'}) or the work folder of another",
            (key, (schema.nearest(bare, known) or known or ["FOLDER"])[0]),
        )
    reward_marker.read(folder, key)
