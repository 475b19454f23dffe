"""What the stages of a run share: mesh, model, tokenizer, stop flag, weights."""

import dataclasses
import json
import pathlib
import signal
from typing import Any

import jax
from jax.sharding import Mesh

from rl_jax import config as configs
from rl_jax import placement, processes
from rl_jax.data import tokenizer
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.mesh import check_divides, is_lead, make_mesh
from rl_jax.models import huggingface
from rl_jax.models.export import copy_side_files
from rl_jax.models.params import Params, init_params
from rl_jax.models.spec import Attention, ModelSpec, spec_from_dict
from rl_jax.stages import reading
from rl_jax.stages.reading import TOKENIZER_FOLDER
from rl_jax.whole_folder import written_whole

MODEL_FILE = "model.json"


class Preempted(Exception):  # noqa: N818 (no error: the run was asked to stop)
    """The run was asked to stop; `code` is the exit code, 128 + the signal."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.code = 128 + signum


class StopFlag:
    """Turns SIGTERM and the first Ctrl-C into a flag that loops look at."""

    def __init__(self) -> None:
        self._signum = 0

    def install(self) -> None:
        """Installs the handlers; a second Ctrl-C interrupts at once."""

        def handler(signum: int, frame: object) -> None:
            if signum == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._signum = signum

        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, handler)

    def check(self) -> None:
        """Raises Preempted if a signal has come to the only process of a run.

        May be called anywhere. Of several processes none stops by itself: the others
        would wait for it. They stop at the next `check_together`.
        """
        if self._signum and processes.is_alone():
            raise Preempted(self._signum)

    def check_together(self, secs: float) -> None:
        """Raises Preempted in all processes if a signal has come to one of them.

        All call it at the same place of a run, and so stop at the same place.

        Args:
            secs: how long to wait for the others, at most.
        """
        signums = processes.gather("stop", self._signum, secs)
        if signum := next(filter(None, signums), 0):
            raise Preempted(signum)


@dataclasses.dataclass(frozen=True)
class Context:
    """Shared by every stage of a run."""

    run: configs.Run
    workdir: pathlib.Path
    mesh: Mesh
    model: ModelSpec
    tokenizer: Tokenizer
    stop: StopFlag

    def folder(self, stage: configs.StageConfig) -> pathlib.Path:
        """The work folder of a stage: the workdir itself for a flat config."""
        return self.workdir / stage.name if stage.prefix else self.workdir


def check_platform(wanted: str) -> None:
    """Raises ConfigError if the devices are not of the platform asked for."""
    found = jax.default_backend()
    found = "gpu" if found in ("cuda", "rocm") else found
    if wanted and wanted != found:
        raise ConfigError(
            f"config.runtime.platform={wanted!r}, but JAX found {found!r} "
            f"({jax.device_count()} devices).\nInstall rl_jax[{wanted}] on a machine "
            f"that has one, or write --config.runtime.platform={found}"
        )


def build(run: configs.Run, workdir: pathlib.Path, stop: StopFlag) -> Context:
    """Mesh, tokenizer and model of a run; nothing is compiled yet.

    A new model's tokenizer is trained here, once. The workdir gets the tokenizer's
    files and the model's sizes, so that it can be used without its config.
    """
    check_platform(run.runtime.platform)
    mesh = make_mesh(run.mesh.replica, run.mesh.fsdp, run.mesh.tensor)
    # Everything that can be wrong is found before the first file is written.
    model = _sizes(run)
    check_layout(run, model, mesh)
    check_host_memory(run, mesh)
    if is_lead():
        workdir.mkdir(parents=True, exist_ok=True)
    text = _tokenizer(run, workdir)
    if not run.model.path:
        size = _rounded_up(text.vocab_size)
        model = dataclasses.replace(model, vocab_size=size)
    if is_lead():
        write_model_file(model, workdir)
    return Context(run, workdir, mesh, model, text, stop)


def _sizes(run: configs.Run) -> ModelSpec:
    """The model's sizes; a new one's vocabulary is an upper bound yet."""
    sizes: dict[str, Any] = dataclasses.asdict(run.model)
    path = sizes.pop("path")
    if path:
        kept = ("dtype", "param_dtype", "float32_head", "remat")
        choices = {name: sizes[name] for name in kept}
        return huggingface.spec_from_config(path, **choices)
    sizes["vocab_size"] = _rounded_up(run.model.vocab_size)
    attention = (Attention(rope_theta=sizes.pop("rope_theta")),)
    return ModelSpec(**sizes, attention=attention)


def _rounded_up(vocab_size: int) -> int:
    # A multiple of 64 divides over any usual mesh.
    return -(-vocab_size // 64) * 64


def _tokenizer(run: configs.Run, workdir: pathlib.Path) -> Tokenizer:
    """The model's own tokenizer, or a new model's, trained here; kept in workdir."""
    folder = workdir / TOKENIZER_FOLDER
    if is_lead() and not folder.exists():
        with written_whole(folder) as unfinished:
            if run.model.path:
                copy_side_files(pathlib.Path(run.model.path), unfinished)
            else:
                reading.new_tokenizer(run, unfinished)
    # Process 0 writes it; the file system is one that all of them share.
    processes.wait("tokenizer", secs=600)
    return tokenizer.load(run.model.path or folder)


def check_layout(run: configs.Run, model: ModelSpec, mesh: Mesh) -> None:
    """Raises ConfigError for sizes that do not divide over the meshes of a run."""
    check_model(model, mesh)
    for stage in run.stages:
        key, rollout = stage.prefix, stage.rollout
        sampler = sampler_mesh(stage, mesh)
        if rollout.mesh:
            check_model(model, sampler, key=f"{key}rollout")
        for name, size, where in (
            ("rollout.slots", rollout.slots, sampler),
            ("rollout.prefill_rows", rollout.prefill_rows, sampler),
            ("batch.micro_rows", stage.batch.micro_rows, mesh),
        ):
            name = key + name
            check_divides(where, {f"config.{name}": ("batch", size, name)})


def check_model(model: ModelSpec, mesh: Mesh, *, key: str = "mesh") -> None:
    """Raises ConfigError for sizes of a model that do not divide over a mesh.

    Args:
        key: of the config that says what mesh it is.
    """
    sizes = {
        "num_heads": ("heads", model.num_heads, ""),
        "num_kv_heads": ("kv_heads", model.num_kv_heads, ""),
        "ffn_width": ("ffn", model.ffn_width, ""),
        "vocab_size": ("vocab", model.vocab_size, ""),
        "width": ("embed", model.width, ""),
    }
    check_divides(mesh, sizes, key=key)


def sampler_mesh(stage: configs.StageConfig, mesh: Mesh) -> Mesh:
    """The mesh to sample on: the trainer's, or another of the same devices."""
    if not stage.rollout.mesh:
        return mesh
    key = f"config.{stage.prefix}rollout"
    # In the trainer's order, so that a device keeps what it has at the hand-over.
    return make_mesh(*stage.rollout.mesh, devices=mesh.devices, key=key, ordered=True)


def check_host_memory(run: configs.Run, mesh: Mesh) -> None:
    """Raises ConfigError if arrays are to stay on hosts that have no memory for it."""
    for stage in run.stages:
        for key, wanted in {
            "optim.host": stage.optim.host,
            "objective.reference_host": stage.objective.reference_host,
            "distill.teacher_host": stage.distill.teacher_host,
        }.items():
            if wanted:
                placement.check(mesh, stage.prefix + key)


def first_params(context: Context) -> Params:
    """The weights that a run begins with: from `model.path`, or new ones."""
    run = context.run
    if run.model.path:
        return huggingface.load_params(run.model.path, context.model, context.mesh)
    return init_params(context.model, context.mesh, run.seed)


def write_model_file(model: ModelSpec, workdir: pathlib.Path) -> None:
    """Says in a workdir what model it holds."""
    text = json.dumps(dataclasses.asdict(model), indent=1) + "\n"
    (workdir / MODEL_FILE).write_text(text)


def read_model_file(workdir: pathlib.Path) -> ModelSpec:
    """The model that a workdir holds."""
    path = workdir / MODEL_FILE
    try:
        return spec_from_dict(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} does not describe a model of this version of rl_jax: {error!r}.\n"
            "Expected what a run of rl_jax.train wrote; train anew, or use the version "
            "that wrote it."
        ) from error
