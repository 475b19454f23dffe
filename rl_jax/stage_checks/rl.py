"""What a stage of reinforcement learning must satisfy beyond the types of its keys."""

from rl_jax import checks
from rl_jax.config_keys import Curriculum, Reward, Run, StageConfig
from rl_jax.faults import divisor, fault
from rl_jax.objectives.presets import COMPAT, PRESETS
from rl_jax.rewards import registry, routing, schedule

_DEFAULT = Curriculum()
# Keys that say nothing on their own, with the key that must be given.
_CURRICULUM_NEEDS = {
    "retire_after": "retire_at",
    "reenter_after": "retire_at",
    "floor": "draw",
}


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for the first fault found."""
    _check_groups(stage)
    checks.check_longest(stage)
    _check_hidden(stage)
    _check_model(stage)
    rewards_by_step(stage)
    _check_something_counts(stage)
    _check_reference(stage)
    _check_curriculum(stage)


def rewards_by_step(stage: StageConfig) -> dict[str, schedule.Steps]:
    """`reward.steps`, read: the steps in which each reward named counts.

    Raises:
        ConfigError: for an entry that cannot be read, or names no reward.
    """
    names = [*_part_weights(stage.reward)]
    names += [schedule.MODEL] if stage.reward.model else []
    return schedule.parse(stage.reward.steps, names, f"{stage.prefix}reward.steps")


def _part_weights(reward: Reward) -> dict[str, float]:
    """Name in `Score.parts` of each reward function -> its largest weight, unsigned."""
    routes = routing.parse(reward.routes)
    functions = routing.functions_of(routes) if routes else reward.functions
    every = tuple(dict.fromkeys((*functions, *reward.hidden)))
    names = dict(zip(every, registry.part_names(every), strict=True))
    pairs = [
        pair
        for one in routes or (routing.Route("*", functions, reward.weights),)
        for pair in zip(one.functions, one.weights, strict=True)
    ]
    return {
        names[function]: max(abs(w) for name, w in pairs if name == function)
        for function in functions
    }


def _check_groups(stage: StageConfig) -> None:
    rollout, batch, key = stage.rollout, stage.batch, stage.prefix
    if rollout.group_size < 2:
        raise fault(
            f"config.{key}rollout.group_size is {rollout.group_size}, expected 2 or "
            f"more: {stage.objective.name} compares a sample with others of its prompt",
            (f"{key}rollout.group_size", 8),
        )
    if rollout.temperature == 0:
        raise fault(
            f"config.{key}rollout.temperature is 0: all samples of a prompt would be "
            "the same, with nothing to learn from",
            (f"{key}rollout.temperature", 1.0),
        )
    if rollout.prompts_per_step % batch.updates_per_step:
        raise fault(
            f"config.{key}rollout.prompts_per_step={rollout.prompts_per_step} is not a "
            f"multiple of config.{key}batch.updates_per_step={batch.updates_per_step}",
            (
                f"{key}batch.updates_per_step",
                divisor(rollout.prompts_per_step, batch.updates_per_step),
            ),
        )


def _check_hidden(stage: StageConfig) -> None:
    reward, key = stage.reward, f"{stage.prefix}reward."
    if not reward.hidden:
        default = Reward().hidden_gap
        if reward.hidden_gap != default:
            raise fault(
                f"config.{key}hidden_gap is {reward.hidden_gap}, but there is no "
                "hidden function to compare with",
                (f"{key}hidden", ("maths",)),
                (f"{key}hidden_gap", default),
            )
        return
    checks.check_functions(reward.hidden, f"{key}hidden")
    routes = routing.parse(reward.routes)
    visible = routing.functions_of(routes) if routes else reward.functions
    trained = [name for name in reward.hidden if name in visible]
    once = tuple(dict.fromkeys(n for n in reward.hidden if n not in visible))
    if trained or once != reward.hidden:
        name = trained[0] if trained else reward.hidden[0]
        why = "is trained on too" if trained else "is there twice"
        raise fault(
            f"config.{key}hidden is {','.join(reward.hidden)}, where {name!r} {why}; "
            "a hidden function judges what others train",
            (f"{key}hidden", once),
        )


def _check_model(stage: StageConfig) -> None:
    reward, key = stage.reward, f"{stage.prefix}reward."
    default = Reward().model_weight
    if not reward.model and reward.model_weight != default:
        raise fault(
            f"config.{key}model_weight is {reward.model_weight}, but there is no "
            "reward model",
            (f"{key}model", "STAGE"),
            (f"{key}model_weight", default),
        )
    if reward.model and schedule.MODEL in _part_weights(reward):
        raise fault(
            f"config.{key}functions has a function called {schedule.MODEL!r}, which is "
            f"the name of config.{key}model among the parts of a score; rename one",
            (f"{key}model", ""),
        )


def _check_something_counts(stage: StageConfig) -> None:
    """In every step there is something to train on."""
    found, weights = rewards_by_step(stage), _part_weights(stage.reward)
    if not found:
        return
    if stage.reward.model:
        weights[schedule.MODEL] = abs(stage.reward.model_weight)
    counting = {name for name, weight in weights.items() if weight}
    # What counts changes at these steps only.
    begins = {1, *(first for first, _ in found.values())}
    begins |= {last + 1 for _, last in found.values() if last}
    for step in sorted(step for step in begins if step <= stage.steps):
        if counting <= schedule.idle(found, step):
            raise fault(
                f"config.{stage.prefix}reward.steps is {','.join(stage.reward.steps)}: "
                f"in step {step} no reward counts, so that there is nothing to learn",
                (f"{stage.prefix}reward.steps", ()),
                note=" or other steps",
            )


def _check_reference(stage: StageConfig) -> None:
    objective, key = stage.objective, f"{stage.prefix}objective."
    given = {"reference_every": 0, "reference_host": False}
    given = {k: v for k, v in given.items() if getattr(objective, k) != v}
    if not given:
        return
    kl_coef = objective.kl_coef
    if kl_coef is None:
        named = COMPAT[objective.compat] if objective.compat else PRESETS
        if objective.name not in named:
            return  # policy_config says so
        kl_coef = named[objective.name].kl_coef
    if not kl_coef:
        name, default = next(iter(given.items()))
        raise fault(
            f"config.{key}{name} is {getattr(objective, name)}, but the "
            "weight of the KL is 0: there is no reference",
            (f"{key}kl_coef", 0.001),
            (f"{key}{name}", default),
        )


def _check_curriculum(stage: StageConfig) -> None:
    group, key = stage.curriculum, f"{stage.prefix}curriculum."
    examples = {"retire_at": 0.9, "draw": "hard"}
    for name, needed in _CURRICULUM_NEEDS.items():
        value, default = getattr(group, name), getattr(_DEFAULT, name)
        if value != default and getattr(group, needed) == getattr(_DEFAULT, needed):
            raise fault(
                f"config.{key}{name} is {value}, which means nothing while "
                f"config.{key}{needed} is {getattr(group, needed)}",
                (f"{key}{needed}", examples[needed]),
                (f"{key}{name}", default),
            )
