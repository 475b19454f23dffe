"""pass@1 and pass@k of a checkpoint or a Hugging Face folder on a held-out file.

python -m rl_jax.evaluate --model=DIR --data=test.jsonl --num_samples=8 --k=1,8

With `--against=FILE`, the `--out` of an evaluation of another model on the same
prompts, also how much better this one is, prompt by prompt.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from rl_jax import command_line
from rl_jax import config as configs
from rl_jax.errors import ConfigError

# The smallest value of each number.
_LEAST = {
    "num_prompts": 1,
    "temperature": 0,
    "top_k": 0,
    "max_new_tokens": 1,
    "max_prompt_tokens": 1,
    "slots": 1,
    "seed": 0,
}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; what is left out comes from the model's own run."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.evaluate",
        description="pass@1 and pass@k with 95 % intervals on a held-out file.",
        epilog="Data and sampling settings that are not given are those of the run "
        "that trained the model, where --model is a work folder.",
    )
    add = parser.add_argument
    add("--model", required=True, help="work folder, stage, or Hugging Face folder")
    add("--data", help="file, glob or folder of rows, or arithmetic")
    add("--num_prompts", type=int, help="the first N prompts (default 200)")
    add("--num_samples", type=int, default=8, help="samples a prompt (default 8)")
    add("--k", default="1,8", help="the k of pass@k, with commas (default 1,8)")
    add("--temperature", type=float, help="0 takes the likeliest token")
    add("--top_p", type=float)
    add("--top_k", type=int)
    add("--max_new_tokens", type=int)
    add("--max_prompt_tokens", type=int)
    add("--slots", type=int, help="replies being decoded at once")
    add("--prompt_column")
    add("--answer_column")
    add("--answer_after", help="the answer follows the last of these, e.g. '####'")
    add("--system", help="system message put before each prompt")
    add("--instruction", help="text added at the end of each prompt")
    add("--answer_format", choices=("boxed", "any"))
    add("--reward", help="function that judges: maths (default), number, or your own")
    add("--seed", type=int, default=0)
    add("--out", help="write every sample and the result here, as JSON lines")
    add(
        "--against", help="the --out of another model on these prompts, to compare with"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Evaluates and prints; returns the exit code."""
    args = arguments(argv)
    try:
        ks = sorted({int(k) for k in args.k.split(",")})
    except ValueError:
        ks = [0]
    if not 1 <= ks[0] <= ks[-1] <= args.num_samples:
        raise ConfigError(
            f"--k={args.k} with --num_samples={args.num_samples}.\nExpected whole "
            "numbers from 1 to num_samples, e.g. --num_samples=8 --k=1,8"
        )
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name}={value}.\nExpected {least} or more.")
    if args.top_p is not None and not 0 < args.top_p <= 1:
        raise ConfigError(
            f"--top_p={args.top_p:g}.\nExpected more than 0, and at most 1."
        )
    before = read_shares(args.against) if args.against else None
    # Imported late: wrong arguments are told in less time than jax takes.
    import jax

    from rl_jax.load import load
    from rl_jax.mesh import make_mesh
    from rl_jax.stages import inputs, scoring
    from rl_jax.stages.evaluation import answers, is_correct

    mesh = make_mesh()
    with jax.set_mesh(mesh):
        loaded = load(args.model, mesh)
        stage = stage_settings(args, loaded.config, num_devices=mesh.size)
        prompts = inputs.eval_prompts(stage, loaded.tokenizer)
        if before is not None:
            asked = {
                (p.row.messages[-1]["content"], str(p.row.answer)) for p in prompts
            }
            check_same(before.keys(), asked, args.against)
        engine = scoring.make_engine(
            stage, loaded.model, loaded.tokenizer, mesh, args.seed
        )
        with scoring.make_pool(stage) as pool:
            scoring.check_rows(pool, stage, prompts)
            scored = answers(
                engine,
                pool,
                loaded.tokenizer,
                loaded.params,
                prompts,
                num_samples=args.num_samples,
                temperature=stage.rollout.temperature,
                max_new_tokens=stage.rollout.max_new_tokens,
            )
    n = args.num_samples
    correct = [is_correct(s) for s in scored]
    counts = [sum(correct[i : i + n]) for i in range(0, len(correct), n)]
    result = summary(counts, n, ks)
    print(f"model        {loaded.name}")
    print(f"data         {stage.data.eval}: {len(prompts)} prompts x {n} samples")
    print(f"temperature  {stage.rollout.temperature:g}")
    for k in ks:
        mean, low, high = result[f"pass@{k}"]
        print(f"pass@{k:<8}{mean:.4f}  95 % interval {low:.4f} to {high:.4f}")
    if before is not None:
        mean, low, high = gain(before, shares(scoring.records(scored)))
        result["gain"] = (mean, low, high)
        print(f"gain         {mean:+.4f}  95 % interval {low:+.4f} to {high:+.4f}")
    verdicts = [s.score.verdict.value for s in scored]
    told = ", ".join(f"{v} {verdicts.count(v)}" for v in sorted(set(verdicts)))
    print(f"verdicts     {told}; truncated {sum(s.sample.truncated for s in scored)}")
    if args.out:
        lines = [json.dumps(record) for record in scoring.records(scored)]
        lines.append(json.dumps({"model": loaded.name, **result}))
        pathlib.Path(args.out).write_text("\n".join(lines) + "\n")
    return 0


def summary(
    num_correct: Sequence[int], num_samples: int, ks: Sequence[int]
) -> dict[str, tuple[float, float, float]]:
    """pass@k as (mean, low, high) from the right samples of each prompt."""
    from rl_jax.pass_at_k import mean_with_interval, pass_at_k

    return {
        f"pass@{k}": mean_with_interval(
            [pass_at_k(num_samples, c, k) for c in num_correct]
        )
        for k in ks
    }


def shares(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """The share of right samples of each (prompt, answer)."""
    right: dict[tuple[str, str], list[bool]] = {}
    for record in records:
        key = (record["prompt"], str(record["answer"]))
        right.setdefault(key, []).append(record["verdict"] == "correct")
    return {key: sum(found) / len(found) for key, found in right.items()}


def read_shares(path: str) -> dict[tuple[str, str], float]:
    """`shares` of a file that `--out` wrote.

    Raises:
        ConfigError: if it is no such file.
    """
    try:
        text = pathlib.Path(path).expanduser().read_text()
        records = [json.loads(line) for line in text.splitlines()]
        return shares(record for record in records if "verdict" in record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--against={path} cannot be read: {error}.\nExpected a file that "
            "--out of an evaluation wrote."
        ) from error


def check_same(before: Set, asked: Set, source: str) -> None:
    """Raises ConfigError unless two evaluations ask the same prompts."""
    if before != asked:
        raise ConfigError(
            f"--against={source} holds {len(before)} prompts, of which "
            f"{len(before & asked)} are among the {len(asked)} asked now.\n"
            "Expected the same ones: the same --data, --num_prompts and --instruction."
        )


def gain(
    before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float]
) -> tuple[float, float, float]:
    """How much the share of right samples grew: mean over prompts, 95 % interval.

    Paired: a prompt is compared with itself, so that hard and easy prompts, which make
    up most of the spread, cancel.
    """
    from rl_jax.pass_at_k import mean_with_interval

    return mean_with_interval([after[key] - before[key] for key in before])


def stage_settings(
    args: argparse.Namespace, trained: dict | None, *, num_devices: int = 1
) -> configs.StageConfig:
    """The stage that the evaluation is like: the trained one, with what was given.

    What is laid on the devices is rounded up to a multiple of them: they need not be
    those of the run.

    Raises:
        ConfigError: if there are no data to evaluate on.
    """
    stage = configs.StageConfig(name="evaluate", prefix="")
    if trained:
        for group in ("data", "rollout", "reward"):
            defaults = getattr(stage, group)
            known = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in trained[group].items()
            }
            stage = dataclasses.replace(
                stage, **{group: dataclasses.replace(defaults, **known)}
            )

    def changed(group, **names):
        given = {
            key: getattr(args, name)
            for key, name in names.items()
            if getattr(args, name) is not None
        }
        return dataclasses.replace(group, **given)

    data = changed(
        stage.data,
        eval="data",
        prompt_column="prompt_column",
        answer_column="answer_column",
        answer_after="answer_after",
        system="system",
        instruction="instruction",
    )
    rollout = changed(
        stage.rollout,
        temperature="temperature",
        top_p="top_p",
        top_k="top_k",
        max_new_tokens="max_new_tokens",
        max_prompt_tokens="max_prompt_tokens",
        slots="slots",
    )
    if not data.eval:
        raise ConfigError(
            "There are no data to evaluate on: the model's run names none.\n"
            "Write --data=FILE, with --prompt_column=NAME --answer_column=NAME."
        )

    def divisible(size):
        return -(-size // num_devices) * num_devices

    rollout = dataclasses.replace(
        rollout,
        slots=divisible(max(rollout.slots, args.num_samples)),
        prefill_rows=divisible(rollout.prefill_rows),
    )
    reward = changed(stage.reward, answer_format="answer_format")
    if args.reward:
        reward = dataclasses.replace(reward, functions=(args.reward,), weights=(1.0,))
    count = args.num_prompts or 200
    return dataclasses.replace(
        stage,
        data=dataclasses.replace(
            data, num_eval_problems=max(count, data.num_eval_problems)
        ),
        rollout=rollout,
        reward=reward,
        eval=dataclasses.replace(stage.eval, num_prompts=count),
    )


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
