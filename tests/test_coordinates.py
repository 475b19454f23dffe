import dataclasses
import types

import pytest

from rl_jax import coordinates
from rl_jax.config import Runtime
from rl_jax.coordinates import Coordinates
from rl_jax.errors import ConfigError


def slurm(rank=2, tasks=4):
    return {
        "SLURM_JOB_ID": "12345",
        "SLURM_STEP_NODELIST": "node[07-08]",
        "SLURM_NTASKS": str(tasks),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
    }


@pytest.fixture
def environ(monkeypatch):
    """Sets the environment; jax reads the real one."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)

    def put(names):
        for name, value in names.items():
            monkeypatch.setenv(name, value)

    return put


def find(**settings):
    return coordinates.find(Runtime(**settings))


def test_alone_there_are_none(environ):
    assert find() is None
    assert find(num_processes=1) is None
    assert find(coordinator="here:1", num_processes=1, process_id=0) is None


def test_the_config_says_where_and_who():
    found = find(coordinator="10.0.0.2:8476", num_processes=4, process_id=3)
    assert found is not None
    assert dataclasses.replace(found, how="") == Coordinates("10.0.0.2:8476", 4, 3, "")
    assert (found.host, found.port) == ("10.0.0.2", 8476)
    assert "4 times" in found.how and "JAX_PROCESS_ID" in found.how


def test_the_environment_says_it_and_the_config_comes_first(environ):
    environ(
        {
            "JAX_COORDINATOR_ADDRESS": "[fd00::2]:99",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": "2",
        }
    )
    found = find()
    assert found is not None
    assert (found.host, found.port) == ("fd00::2", 99)
    assert (found.num_processes, found.process_id) == (3, 2)
    found = find(process_id=0, coordinator="a:1")
    assert found is not None
    assert (found.coordinator, found.process_id) == ("a:1", 0)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"coordinator": "a:1"},
            "has coordinator=a:1, but no num_processes and no process_id",
        ),
        ({"coordinator": "a:1", "num_processes": 2}, "but no process_id"),
        ({"process_id": 0}, "but no coordinator and no num_processes"),
        (
            {"coordinator": "a", "num_processes": 2, "process_id": 0},
            "expected HOST:PORT",
        ),
        (
            {"coordinator": "a:70000", "num_processes": 2, "process_id": 0},
            "expected HOST:PORT",
        ),
        (
            {"coordinator": "a:1", "num_processes": 2, "process_id": 2},
            "process_id is 2, expected 0 to 1",
        ),
        ({"num_processes": 4}, "num_processes is 4, but this process found no other"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_write(
    environ, settings, message
):
    with pytest.raises(ConfigError, match=message) as caught:
        find(**settings)
    assert len(str(caught.value).splitlines()) <= 3
    assert "--config.runtime." in str(caught.value)


def test_a_word_for_a_number_in_the_environment_is_refused(environ):
    environ({"JAX_PROCESS_ID": "first"})
    with pytest.raises(ConfigError, match="JAX_PROCESS_ID is 'first'"):
        find(coordinator="a:1", num_processes=2)


def test_slurm_is_detected_with_one_device_a_process(environ):
    environ(slurm())
    found = find()
    assert found is not None
    assert found.host == "node07" and found.port > 1024
    assert (found.num_processes, found.process_id) == (4, 2)
    assert found.local_device_ids == (0,)
    assert "srun" in found.how


def test_one_task_of_slurm_is_a_process_alone(environ):
    environ(slurm(rank=0, tasks=1))
    assert find() is None


@pytest.mark.parametrize("tasks, expected", [(4, 8), (4, 1), (1, 4)])
def test_another_number_than_expected_is_refused(environ, tasks, expected):
    environ(slurm(rank=0, tasks=tasks))
    with pytest.raises(ConfigError, match=f"num_processes is {expected}, but"):
        find(num_processes=expected)


def tpu(monkeypatch, workers):
    """A TPU VM, as jax would detect it."""

    def detect(*args):
        return "10.0.0.2:8476", workers, 1, None

    env = types.SimpleNamespace(auto_detect_unset_distributed_params=detect)
    import jax._src.clusters as clusters

    monkeypatch.setattr(clusters, "ClusterEnv", env)


def test_a_tpu_pod_is_detected_and_says_how_to_start_the_rest(environ, monkeypatch):
    tpu(monkeypatch, workers=4)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    found = find(num_processes=4)
    assert found is not None
    assert (found.coordinator, found.num_processes) == ("10.0.0.2:8476", 4)
    assert "all 4 workers" in found.how and "--worker=all" in found.how


def test_a_trial_on_the_cpu_of_a_pods_worker_does_not_wait_for_the_rest(
    environ, monkeypatch
):
    tpu(monkeypatch, workers=4)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert find() is None
    monkeypatch.setenv("JAX_PLATFORMS", "")
    assert find(platform="cpu") is None


def test_jax_still_has_the_function_that_detects():
    from jax._src import clusters

    assert callable(clusters.ClusterEnv.auto_detect_unset_distributed_params)


def test_kinds_of_jobs_are_told_apart():
    assert coordinates._kind({}) == "tpu"
    assert coordinates._kind({"SLURM_JOB_ID": "1"}) == "slurm"
    assert coordinates._kind({"OMPI_MCA_orte_hnp_uri": "x"}) == "mpi"
    assert coordinates._kind({"TPU_WORKER_HOSTNAMES": "a,b"}) == "gke"
