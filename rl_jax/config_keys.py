"""Every key of a run: its meaning, unit and default. The only place they live.

`rl_jax/config.py` makes trees of them for recipes, and these dataclasses of a tree.
"""

import dataclasses
from typing import Literal

from rl_jax.objectives import names

Kind = Literal[
    "pretrain",
    "sft",
    "reward_model",
    "dpo",
    "rl",
    "distill",
    "select",
    "curate",
    "merge",
]
Float = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Model:
    """The decoder: read from `path`, or a new one of the sizes that follow."""

    path: str = ""  # local Hugging Face folder; empty: a new model, sizes as below
    num_layers: int = 4  # decoder layers
    width: int = 128  # channels between layers
    num_heads: int = 4  # query heads
    num_kv_heads: int = 2  # key/value heads; divides num_heads
    head_dim: int = 0  # channels of a head, even; 0: width / num_heads
    ffn_width: int = 384  # channels inside the feed-forward part
    vocab_size: int = 256  # pieces of the built-in tokenizer, trained for the task
    rope_theta: float = 10_000.0  # base of the rotary wavelengths
    tie_embeddings: bool = True  # the embedding is also the output head
    dtype: Float = "float32"  # of activations and matrix products
    param_dtype: Float = "float32"  # of stored weights
    float32_head: bool = True  # the output head's product in float32, whatever dtype
    remat: Literal["none", "layer"] = "none"  # layer: recomputed in the backward pass


@dataclasses.dataclass(frozen=True)
class Mesh:
    """How the devices are divided; the product is their number."""

    replica: int = 1  # whole copies of the sharded model, across slices
    fsdp: int = -1  # parts that rows and weights are cut into; -1: all devices left
    tensor: int = 1  # parts that heads, feed-forward width and vocabulary are cut into


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where the run takes place, and in which processes (rl_jax/coordinates.py)."""

    platform: Literal["", "cpu", "gpu", "tpu"] = ""  # refuse any other; empty: take any
    coordinator: str = ""  # HOST:PORT of process 0, where all meet; empty: found out
    num_processes: int = 0  # processes that there must be; 0: as many as are found
    process_id: int = -1  # which of them this one is, from 0; -1: found out
    start_secs: float = 300.0  # seconds for all processes to come, at most
    # Minutes without a finished step end the run; 0: two hours, alone never.
    step_minutes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Data:
    """Rows to train on and to evaluate on.

    A source is a file, a glob or a folder of .jsonl, .jsonl.gz and .parquet files, a
    built-in task (arithmetic, programs, word_problems and those of data/toys), or an
    earlier stage of the chain that writes data (select, curate). Several are written
    with commas, and with @ their shares of what is drawn, as in
    `gsm8k.jsonl@0.7,math/*.parquet@0.3`. Rows are recognised by their columns
    (data/shapes.py, data/fields.py).
    """

    # Files, folders, built-in tasks, stages that write data; with shares: A@0.7,B@0.3.
    train: str = ""
    eval: str = ""  # the same without shares, for evaluation; empty: none
    # The same: what is only read to measure the loss at evaluations; empty: none.
    held_out: str = ""
    prompt_column: str = ""  # column with the prompt, text or messages; empty: found
    answer_column: str = ""  # column with the reference answer; empty: found
    completion_column: str = ""  # column with the reply to learn; empty: found
    text_column: str = ""  # column with plain text to learn (pretrain); empty: found
    weight_column: str = ""  # column with a row's weight in the loss; empty: all alike
    chosen_column: str = ""  # column with the preferred reply; empty: found
    rejected_column: str = ""  # column with the other reply; empty: found
    margin_column: str = ""  # column with how much better it is; empty: not used
    answer_after: str = ""  # the answer is what follows the last of these; empty: all
    system: str = ""  # system message put before each prompt; empty: none
    instruction: str = ""  # text added at the end of each prompt; empty: none
    # For the chat template, e.g. enable_thinking=false; values are JSON.
    template_variables: tuple[str, ...] = ()
    num_problems: int = 4096  # problems of a generated task to train on
    num_eval_problems: int = 128  # other problems of it to evaluate on
    wrong_share: float = 0.0  # of a generated task's demonstrations, answered wrongly


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Sampling replies: to train on (rl, distill), to keep (select), to evaluate."""

    prompts_per_step: int = 8  # prompts in a rollout batch
    group_size: int = 8  # samples of each prompt, at least 2: they are compared
    max_prompt_tokens: int = 256  # longer prompts are left out, and counted
    max_new_tokens: int = 256  # tokens of a reply, at most
    temperature: float = 1.0  # divides the logits; 0: always the likeliest token
    top_p: float = 1.0  # keep the likeliest tokens up to this probability; 1: all
    top_k: int = 0  # keep this many likeliest tokens; 0: all
    slots: int = 64  # replies being decoded at once
    decode_steps: int = 8  # tokens decoded in one dispatch to the device
    prefill_rows: int = 8  # prompts read in one dispatch to the device
    # Of a mesh of its own for the sampler: copies of the weights; all 0: the trainer's.
    replica: int = 0
    fsdp: int = 0  # of that mesh: parts of slots and weights; -1, 0: all devices left
    tensor: int = 0  # of that mesh: parts that heads are cut into

    @property
    def mesh(self) -> tuple[int, int, int] | None:
        """Sizes of the sampler's own mesh as `mesh.make_mesh` takes them, if any."""
        if not (self.replica or self.fsdp or self.tensor):
            return None
        return self.replica or 1, self.fsdp or -1, self.tensor or 1


@dataclasses.dataclass(frozen=True)
class Reward:
    """Scoring replies: to train on (rl), to choose by (select), to evaluate.

    With `routes` the data source of a row decides which functions judge it
    (rewards/routing.py): `gsm8k=gsm8k,math*=maths+format@0.1,*=maths`; built_in stands
    for the usual data sets. Then `functions` and `weights` are not used.
    """

    functions: tuple[str, ...] = ("maths",)  # names of reward functions, to be added up
    weights: tuple[float, ...] = (1.0,)  # factor of each; 0: a metric only
    routes: tuple[str, ...] = ()  # by data source; empty: functions, for every row
    timeout_secs: float = 5.0  # seconds for one reply before its worker is replaced
    workers: int = 2  # worker processes
    answer_format: Literal["boxed", "any"] = "boxed"  # where a reply's answer is sought
    # Pattern the format reward wants (regex); empty: one boxed answer.
    format_pattern: str = ""
    # Of single functions: repetition.ngram=4, code.isolation=landlock.
    options: tuple[str, ...] = ()
    # Share of replies that the graders' own faults may leave unscored.
    max_infrastructure_share: float = 0.2
    check_golds: bool = True  # at start, refuse rows whose reference is of no use
    shuffle: bool = False  # control: permute the rewards within each batch
    # A trained reward model whose score is added: a stage, or its work folder.
    model: str = ""
    model_weight: float = 1.0  # factor of that score
    # Steps, from 1, in which a function (or model) counts: NAME=FIRST, or FIRST-LAST.
    steps: tuple[str, ...] = ()
    # Functions that judge but do not train: their score against what is trained on.
    hidden: tuple[str, ...] = ()
    # Alarm when reward less hidden score is larger by this than in the first steps.
    hidden_gap: float = 0.2


@dataclasses.dataclass(frozen=True)
class Objective:
    """The policy loss: a named one, and what differs from it.

    What each choice means is in rl_jax/objectives: surrogate.py has the formulas.
    """

    name: names.Preset = "grpo"  # the named loss; none below: as the named loss has it
    compat: names.Compat | None = None  # that loss as this trainer has it
    centre: names.Centre | None = None  # what is taken from a reward
    scale: names.Scale | None = None  # what it is then divided by
    advantage: names.Advantage | None = None  # an earlier name for the two
    whiten: names.Whiten | None = None  # mean 0 and spread 1 over all tokens of a step
    surrogate: names.Surrogate | None = None  # what ratio and advantage make of a token
    denominator: names.Denominator | None = None  # whom the ratio is to
    ratio: names.Ratio | None = None  # of a token, or of a whole sample
    clip_low: float | None = None  # ratio bounded from below by 1 - this
    clip_high: float | None = None  # ratio bounded from above by 1 + this
    ratio_cap: float | None = None  # absolute cap: dual clip, ScaleRL, delta; 0: off
    tau: float | None = None  # what the paper of the surrogate calls tau
    tau_negative: float | None = None  # the same where the advantage is negative: sapo
    aggregate: names.Aggregate | None = None  # how token losses are averaged
    kl: names.Kl | None = None  # estimator of the KL to the reference
    kl_coef: float | None = None  # weight of that KL; 0: no reference model is kept
    # In the loss, in the reward of a sample, or in the return of a token.
    kl_place: names.KlPlace | None = None
    correction: names.Correction | None = None  # the weight made of exp(old - sampler)
    sampler_low: float | None = None  # lower bound of what the correction judges
    sampler_cap: float | None = None  # upper bound of it; 0: no correction
    # Bad samples that drifted so many nats are left out; 0: none is.
    off_policy_delta: float | None = None
    entropy_coef: float | None = None  # weight of the entropy bonus
    dynamic_sampling: bool | None = None  # replace prompts whose rewards all agree
    overlong_buffer: float | None = None  # last part of max_new_tokens to penalise
    overlong: names.Overlong = "dapo"  # whose such penalty
    overlong_factor: float = 1.0  # what a reply of max_new_tokens loses; not for dapo
    length_coef: float = 0.0  # weight of Kimi k1.5's reward for short answers; 0: off
    length_from: int = 1  # first step with that reward
    max_refills: int = 4  # times a rollout batch may be topped up by dynamic_sampling
    # Steps after which the policy becomes the reference; 0: never.
    reference_every: int = 0
    # The reference stays in pinned host memory, on the device only while it scores.
    reference_host: bool = False


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """Which prompts are asked again: decided by their pass rates so far."""

    retire_at: float = 0.0  # pass rate from which a prompt is asked no more; 0: never
    retire_after: int = 1  # times a prompt must have been asked before that
    # Steps after which a retired prompt is asked again; 0: never.
    reenter_after: int = 0
    # How often prompts are drawn: all alike, or by 1 - pass rate, or by p (1 - p).
    draw: Literal["uniform", "hard", "uncertain"] = "uniform"
    floor: float = 0.05  # least weight of a prompt, of 1 at most; not for uniform


@dataclasses.dataclass(frozen=True)
class Supervised:
    """What of a conversation is learnt."""

    # The assistant's turns as it samples them, or every token of a conversation.
    learn: Literal["assistant", "everything"] = "assistant"


@dataclasses.dataclass(frozen=True)
class Preference:
    """The loss on pairs: a named one, and what differs (objectives/preference.py)."""

    name: names.PreferencePreset = "dpo"  # none below: as the named loss has it
    kind: names.PreferenceKind | None = None  # form of the loss of a pair
    beta: float | None = None  # strength of the pull to the reference
    label_smoothing: float | None = None  # share of pairs thought to be swapped
    average: names.PreferenceAverage | None = None  # mean: length-normalised
    nll_coef: float | None = None  # weight of the chosen reply's negative likelihood
    mask_special: bool | None = None  # special tokens are not compared
    # The frozen model that log-ratios are to: init, base, a stage or a folder.
    reference: str = "init"
    pairs_per_step: int = 32  # pairs in an optimiser step, in as many rows as they need


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The loss of a reward model (objectives/reward_model.py)."""

    form: Literal["ranking", "pointwise"] = "ranking"  # of pairs and lists; of labels
    # By how much a better reply should be ahead: what data.margin_column says, or
    # Llama 2's small or large number for the rating that it holds.
    margin: Literal["none", "column", "small", "large"] = "none"
    prompts_per_step: int = 64  # prompts in an optimiser step, each with its replies


@dataclasses.dataclass(frozen=True)
class Distill:
    """Learning from a teacher's probabilities (objectives/distillation.py).

    Learning from a teacher's replies is the kind sft, on what a select stage wrote.
    """

    # base, a stage, STAGE@STEP, a work folder, or a Hugging Face folder; it may be of
    # other sizes than the student, but must have the same token ids.
    teacher: str = ""
    # soft: on the replies of data.train; others: on replies the student draws.
    form: Literal["soft", "opd", "mopd", "async_mopd", "kimi_k3", "glm5"] = "opd"
    temperature: float = 1.0  # divides the logits of both (soft)
    direction: Literal["forward", "reverse"] = "forward"  # of the KL (soft)
    top_k: int = 0  # likeliest tokens of the teacher compared; 0: all of them (soft)
    rest: Literal["bucket", "renormalised", "dropped"] = "bucket"  # of the others
    outcome: float | None = None  # weight of the advantage of rewards; form's own
    bound: float | None = None  # of a token's log-ratio, nats; 0: none; form's own
    # The teacher stays in pinned host memory, on the device only while it reads.
    teacher_host: bool = False


@dataclasses.dataclass(frozen=True)
class Select:
    """Rejection sampling: which of the sampled replies are written, and how."""

    # Of each prompt: the best reply, all correct ones, best and worst, all with scores.
    keep: Literal["best", "correct", "pairs", "rankings"] = "best"
    only_correct: bool = False  # best, or the better of a pair: of those correct
    min_score: float | None = None  # least score of what is learnt from; not of worse
    truncated: bool = False  # learn too from what was cut off at max_new_tokens
    max_per_prompt: int = 0  # correct, rankings: replies of a prompt; 0: no limit
    min_gap: float = 0.0  # pairs: by how much the best must beat the worst
    dedupe: bool = True  # leave out replies to a prompt that are the same
    balance: bool = False  # as many rows of each data source
    max_prompts: int = 0  # prompts asked; 0: all of data.train once
    max_pass_rate: float = 1.0  # prompts with more correct replies than this: left out
    # Also written, after what was kept: sources of rows of that form, earlier stages.
    also: str = ""
    # Share of the prompts whose rows are kept apart, for others' data.held_out.
    held_out: float = 0.0
    # pairs: the policy whose replies are the worse ones (Delta Learning); empty: drawn
    # from the same as the better.
    rejected: str = ""


@dataclasses.dataclass(frozen=True)
class Curate:
    """Which rows of data.train are written (rl_jax/curate.py says what each does)."""

    by: Literal["prompt", "row"] = "prompt"  # what makes rows duplicates
    near: float = 0.8  # share of runs in common of near duplicates; 0: exact ones only
    near_ngram: int = 5  # tokens in such a run
    against: str = ""  # held-out sources: rows with one of their prompts are left out
    ngram: int = 8  # tokens in a run, for against
    overlap: float = 0.5  # share of a held-out prompt in such runs that is found
    pass_rate: bool = False  # sample group_size replies, for the bounds that follow
    min_pass_rate: float = 0.0  # least to keep
    max_pass_rate: float = 1.0  # most to keep


@dataclasses.dataclass(frozen=True)
class Merge:
    """Averaging weights of earlier stages or folders."""

    models: tuple[str, ...] = ()  # stages, or work folders; STAGE@STEP: a checkpoint
    weights: tuple[float, ...] = ()  # parts of each; empty: all the same
    ema: float = 0.0  # decay of a moving average, oldest first; 0: none


@dataclasses.dataclass(frozen=True)
class Gate:
    """What a stage must reach: otherwise the chain stops there, exit code 3."""

    metric: str = ""  # a name in metrics.jsonl; empty: no gate
    at_least: float | None = None  # for its last value
    at_most: float | None = None  # for its last value
    rise: float | None = None  # of the last value over the first, at least
    fall: float | None = None  # of the last value below the first, at least


@dataclasses.dataclass(frozen=True)
class Optim:
    """AdamW and its schedule, in optimiser steps."""

    lr: float = 1e-6  # peak learning rate
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up
    warmup_steps: int = 0  # steps of linear rise from 0, counted like `steps`
    final_lr_fraction: float = 0.0  # last rate over the peak (linear, cosine)
    weight_decay: float = 0.0  # decoupled, a fraction per unit of learning rate
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.95  # decay of the mean of squared gradients
    eps: float = 1e-8  # added to the root of the latter
    clip_norm: float = 1.0  # largest global norm of a gradient; 0: no clipping
    # Both means stay in pinned host memory, a layer of them on the device at a time.
    host: bool = False


@dataclasses.dataclass(frozen=True)
class Batch:
    """How samples become rows, and rows become optimiser steps."""

    row_tokens: int = 0  # tokens of a packed row; 0: max_prompt_tokens + max_new_tokens
    micro_rows: int = 8  # rows in one forward and backward pass
    rows_per_step: int = 8  # rows in an optimiser step; a multiple of micro_rows
    updates_per_step: int = 1  # optimiser steps a rollout batch is split into


@dataclasses.dataclass(frozen=True)
class Eval:
    """Measuring on what is not trained on: accuracy of replies, loss."""

    every: int = 0  # steps between evaluations, also first and last; 0: never
    num_prompts: int = 64  # prompts each time, at most; always the same ones
    greedy: bool = True  # take the likeliest reply of each prompt
    num_samples: int = 0  # and this many at rollout.temperature


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What is kept on disk; the end of a stage is always saved."""

    every: int = 50  # steps between checkpoints; 0: only at the end
    keep: int = 2  # newest checkpoints kept


@dataclasses.dataclass(frozen=True)
class Log:
    """What is shown of the replies."""

    samples_every: int = 10  # steps between printed replies; 0: never
    num_samples: int = 2  # replies printed each time


@dataclasses.dataclass(frozen=True)
class StageConfig:
    """One stage, resolved. A flat config is one stage, named as its kind.

    Keys that mean nothing for its kind (rl_jax/kinds.py) hold their defaults.
    """

    name: str
    prefix: str  # of its keys on the command line: "" or "rl."
    kind: Kind = "rl"  # what the stage does; set by the recipe
    # Where weights come from: base, new (other random ones), a stage, or a folder.
    init: str = "base"
    steps: int = 100  # rollout batches (rl) or optimiser steps (others); 0: none
    data: Data = Data()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    objective: Objective = Objective()
    curriculum: Curriculum = Curriculum()
    supervised: Supervised = Supervised()
    preference: Preference = Preference()
    ranking: Ranking = Ranking()
    distill: Distill = Distill()
    select: Select = Select()
    curate: Curate = Curate()
    merge: Merge = Merge()
    optim: Optim = Optim()
    batch: Batch = Batch()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    gate: Gate = Gate()


@dataclasses.dataclass(frozen=True)
class Run:
    """A whole run, resolved: what its stages share, and the stages in order."""

    stages: tuple[StageConfig, ...]
    seed: int = 0  # of weights, data order and sampling
    model: Model = Model()
    mesh: Mesh = Mesh()
    runtime: Runtime = Runtime()
    export: bool = True  # at the end also write WORKDIR/huggingface, a model folder
    notes: tuple[str, ...] = ()  # told at the start, such as what no paper gives
