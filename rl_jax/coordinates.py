"""Where the processes of a job meet, how many they are, and which one this is.

Taken from the config, else from the environment, else from what the machines say of
themselves: Cloud TPU, GKE, SLURM and Open MPI, as jax detects them. Importing this
file does not import jax.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Protocol

from rl_jax.errors import ConfigError

# jax reads the first of these itself; the other two are ours, named alike.
COORDINATOR = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"


class Settings(Protocol):
    """What `rl_jax.config.Runtime` says of processes."""

    @property
    def platform(self) -> str: ...
    @property
    def coordinator(self) -> str: ...
    @property
    def num_processes(self) -> int: ...
    @property
    def process_id(self) -> int: ...
    @property
    def start_secs(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """One process among the `num_processes` of its job.

    Attributes:
        coordinator: "host:port" of process 0, where all meet.
        how: how to start the other processes, for people.
        local_device_ids: devices of the machine that are this process's; None: all.
    """

    coordinator: str
    num_processes: int
    process_id: int
    how: str
    local_device_ids: tuple[int, ...] | None = None

    @property
    def host(self) -> str:
        """Host part of `coordinator`, without the brackets of an IPv6 address."""
        return self.coordinator.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.coordinator.rpartition(":")[2])


def find(
    settings: Settings, environ: Mapping[str, str] = os.environ
) -> Coordinates | None:
    """The coordinates of this process; None if it is the only one of its job.

    `settings.num_processes` says how many are expected, wherever they come from.

    Raises:
        ConfigError: if they are incomplete or impossible, or not as many as expected.
    """
    coordinator = settings.coordinator or environ.get(COORDINATOR, "")
    num_processes = settings.num_processes or _number(environ, NUM_PROCESSES, 0)
    process_id = settings.process_id
    if process_id < 0:
        process_id = _number(environ, PROCESS_ID, -1)
    if not coordinator and process_id < 0:
        found = _detected(settings, environ)
        seen = found.num_processes if found else 1
        if num_processes and seen != num_processes:
            raise _unexpected(num_processes, seen)
        return found if found and seen > 1 else None
    _check(coordinator, num_processes, process_id)
    if num_processes == 1:
        return None
    ids = f"{PROCESS_ID} or --config.runtime.process_id from 0 to {num_processes - 1}"
    how = f"start the same command {num_processes} times, each with its own {ids}"
    return Coordinates(coordinator, num_processes, process_id, how)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(
            f"The environment variable {name} is {text!r}, expected a whole number.\n"
            f"Write e.g. {name}={max(default, 0)}, or unset it."
        ) from None


def _check(coordinator: str, num_processes: int, process_id: int) -> None:
    """Raises ConfigError unless the three go together."""
    if not coordinator or num_processes < 1 or process_id < 0:
        given = {
            "coordinator": coordinator,
            "num_processes": num_processes if num_processes > 0 else "",
            "process_id": process_id if process_id >= 0 else "",
        }
        missing = [name for name, value in given.items() if value == ""]
        known = [f"{name}={value}" for name, value in given.items() if value != ""]
        raise ConfigError(
            f"config.runtime has {', '.join(known)}, but no "
            f"{' and no '.join(missing)}; processes that are told where to meet need "
            "all three.\n"
            "Write --config.runtime.coordinator=HOST:PORT (of process 0) "
            "--config.runtime.num_processes=N --config.runtime.process_id=0 (to N-1)\n"
            f"or set {COORDINATOR}, {NUM_PROCESSES} and {PROCESS_ID}."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"config.runtime.coordinator is {coordinator!r}, expected HOST:PORT, where "
            "process 0 can be reached.\nWrite e.g. "
            "--config.runtime.coordinator=10.0.0.2:8476"
        )
    if process_id >= num_processes:
        raise ConfigError(
            f"config.runtime.process_id is {process_id}, expected 0 to "
            f"{num_processes - 1}, as config.runtime.num_processes is {num_processes}."
            f"\nWrite e.g. --config.runtime.process_id={num_processes - 1}"
        )


def _detected(settings: Settings, environ: Mapping[str, str]) -> Coordinates | None:
    """What jax finds out by itself; None if nothing."""
    kind = _kind(environ)
    on_cpu = "cpu" in (settings.platform, environ.get("JAX_PLATFORMS", ""))
    if on_cpu and kind == "tpu":
        return None  # a trial on one host's CPU is not to wait for its TPU's others
    # jax.distributed.initialize asks the same function; no public one tells the
    # answer before all processes are waited for. There in jax 0.10 and 0.12.
    from jax._src import clusters

    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    coordinator, num_processes, process_id, local_device_ids = detect(
        None, None, None, None, None, int(settings.start_secs)
    )
    if coordinator is None or num_processes is None or process_id is None:
        return None
    how = _HOW[kind].format(num_processes=num_processes)
    devices = None if local_device_ids is None else tuple(local_device_ids)
    return Coordinates(coordinator, num_processes, process_id, how, devices)


_HOW = {
    "slurm": "srun starts one process a task, {num_processes} of them (--ntasks)",
    "mpi": "mpirun starts one process a rank, {num_processes} of them",
    "gke": "all {num_processes} pods of the job run the same command",
    "tpu": "the same command has to run on all {num_processes} workers: "
    "launch/tpu_pod.sh run, or gcloud compute tpus tpu-vm ssh NAME --worker=all",
}


def _kind(environ: Mapping[str, str]) -> str:
    """What started this process, as far as people need to know it."""
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    if any(name.startswith(("OMPI_", "PMIX_")) for name in environ):
        return "mpi"
    gke = ("KUBERNETES_SERVICE_HOST", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
    return "gke" if any(name in environ for name in gke) else "tpu"


def _unexpected(expected: int, seen: int) -> ConfigError:
    """Fewer or more processes than there should be."""
    if seen == 1:
        return ConfigError(
            f"config.runtime.num_processes is {expected}, but this process found no "
            "other: no TPU pod, SLURM, MPI or GKE job is seen from here. Alone it "
            "would train a copy of its own, as would each of the others.\n"
            "Write --config.runtime.coordinator=HOST:PORT and "
            "--config.runtime.process_id=..., or --config.runtime.num_processes=1"
        )
    return ConfigError(
        f"config.runtime.num_processes is {expected}, but the job has {seen} "
        f"processes.\nStart {expected}, or write --config.runtime.num_processes={seen}"
    )
