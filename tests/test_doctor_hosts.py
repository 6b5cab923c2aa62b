"""`hosts` is what `jax.process_count()` or the cluster would say, in whatever way they are told."""

import json
from typing import Any

import pytest

from tests.machines import chips, codes, diagnosed
from tests.test_doctor_checks import tpu_vm
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.runtime.record import Recorder
from tpuctl.runtime.replay import RecordedMachine

ATTRIBUTES = "instance/attributes/"
JAX = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def names(count: int, tail: str = "") -> str:
    return ",".join(f"w-{number}{tail}" for number in range(count))


def slice_host(
    env: dict[str, str] | None = None, *, listed: str = "", tpu_env: str = "", **more: Any
) -> Diagnosis:
    """A v6e host with four chips, and what its metadata server says."""
    metadata = {f"{ATTRIBUTES}agent-worker-number": "1", **more.pop("metadata", {})}
    if listed:
        metadata[f"{ATTRIBUTES}worker-network-endpoints"] = listed
    if tpu_env:
        metadata[f"{ATTRIBUTES}tpu-env"] = tpu_env
    document = {"env": env or {}, "pci": chips(4, "0x006f"), "packages": JAX, **more}
    return diagnosed({**document, "metadata": metadata})


def place(found: Diagnosis) -> tuple[int, int | None, int]:
    return found.hosts, found.worker, found.slices


SLICES = "MEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '2'\n"
ON_A_TPU: dict[str, tuple[dict[str, Any], tuple[int, int | None, int]]] = {
    "triples": ({"listed": names(4, ":7:10.0.0.1")}, (4, 1, 1)),
    "bare names": ({"listed": names(4)}, (4, 1, 1)),
    "a trailing comma": ({"listed": names(4) + ", ,"}, (4, 1, 1)),
    "slices in the metadata": ({"listed": names(4), "tpu_env": SLICES}, (12, 9, 3)),
    "slices in the environment come first": (
        {"env": {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"}, "listed": names(4),
         "tpu_env": SLICES}, (8, 1, 2)
    ),
    "an emptied variable also comes first": (
        {"env": {"MEGASCALE_NUM_SLICES": ""}, "listed": names(4), "tpu_env": SLICES}, (4, 1, 1)
    ),
    "slices of one host": ({"env": {"MEGASCALE_NUM_SLICES": "2"}, "listed": "w-0",
                            "metadata": {f"{ATTRIBUTES}agent-worker-number": "0"}}, (2, 0, 2)),
    "a slice id beyond the slices": (
        {"env": {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "7"}, "listed": names(2)},
        (4, None, 2),
    ),
    "GKE's host names before the metadata": (
        {"env": {"TPU_WORKER_HOSTNAMES": names(2), "TPU_WORKER_ID": "0"}, "listed": names(8)},
        (2, 0, 1),
    ),
    "process addresses before the host names": (
        {"env": {"TPU_PROCESS_ADDRESSES": names(4, ":8476"), "TPU_WORKER_HOSTNAMES": names(2),
                 "TPU_WORKER_ID": "3"}}, (4, 3, 1)
    ),
    "process addresses in a file": (
        {"env": {"TPU_PROCESS_ADDRESSES_PATH": "/etc/tpu/peers"},
         "files": {"/etc/tpu/peers": names(4, ":8476") + "\n"}}, (4, 1, 1)
    ),
    "a file that is not there": (
        {"env": {"TPU_PROCESS_ADDRESSES_PATH": "/gone"}, "listed": names(2)}, (2, 1, 1)
    ),
    "a sentence where names should be": (
        {"env": {"TPU_WORKER_HOSTNAMES": "WARNING: could not, really, determine"},
         "listed": names(4)}, (4, 1, 1)
    ),
    "one process with its own chips": (
        {"env": {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1"},
         "listed": names(8)}, (1, None, 1)
    ),
    "one host by its bounds": ({"env": {"TPU_HOST_BOUNDS": "1,1,1"}, "listed": names(4)},
                               (1, None, 1)),
    "the topology of a node pool": ({"env": {"TPU_TOPOLOGY": "4x4"}}, (4, 1, 1)),
    "the topology in the metadata": ({"tpu_env": "TOPOLOGY: '2x4'\n"}, (2, 1, 1)),
    "Slurm on TPUs": (
        {"env": {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}, "listed": names(4)}, (2, 1, 1)
    ),
    "a launcher per slice": (
        {"env": {"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0", "TPU_WORKER_ID": "0",
                 "TPU_WORKER_HOSTNAMES": names(2), "MEGASCALE_NUM_SLICES": "2",
                 "MEGASCALE_SLICE_ID": "1"}}, (4, 2, 2)
    ),
    "several processes on a host": (
        {"env": {"TPU_PROCESS_BOUNDS": "2,2,1", "TPU_PROCESS_ADDRESSES": names(4, ":8476"),
                 "CLOUD_TPU_TASK_ID": "2"}, "listed": names(1)}, (4, 2, 1)
    ),
    "TF_CONFIG does not count TPU hosts": (
        {"env": {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}}'}}, (1, None, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_A_TPU)
def test_the_hosts_of_a_tpu_are_those_that_jax_counts(name: str) -> None:
    arguments, expected = ON_A_TPU[name]
    found = slice_host(**arguments)
    assert place(found) == expected
    several = expected[0] > 1
    assert found.strategy_jax == ("distributed+mesh" if several else "mesh")
    assert ("F55" in codes(found)) == several


CHIEF = {"type": "chief", "index": 0}
WITHOUT_A_TPU: dict[str, tuple[dict[str, str], int, int | None]] = {
    "chief and workers": (
        {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a"], "worker": ["b", "c"], "ps": ["d"],
                                              "evaluator": ["e"]},
                                  "task": {"type": "worker", "index": 1}})}, 3, 2
    ),
    "a sparse cluster": (
        {"TF_CONFIG": json.dumps({"cluster": {"worker": {"0": "a", "3": "b"}}, "task": CHIEF})},
        2, None,
    ),
    "a parameter server": (
        {"TF_CONFIG": json.dumps({"cluster": {"worker": ["b", "c"], "ps": ["d"]},
                                  "task": {"type": "ps", "index": 0}})}, 2, None
    ),
    "a job of one": (
        {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a"]}, "task": CHIEF})}, 1, None
    ),
    "worker pools of Vertex AI": (
        {"CLUSTER_SPEC": json.dumps(
            {"cluster": {"workerpool0": ["a"], "workerpool1": ["b", "c"], "workerpool2": ["ps"]},
             "task": {"type": "workerpool1", "index": 1}, "job": "{}"})}, 3, 2
    ),
    "torchrun": ({"GROUP_WORLD_SIZE": "4", "GROUP_RANK": "3"}, 4, 3),
    "a script for torchrun": ({"NNODES": "2", "NODE_RANK": "1"}, 2, 1),
    "an elastic range of nodes": ({"NNODES": "1:4"}, 1, None),
    "SkyPilot": ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}, 2, 1),
    "numbered JAX processes": (
        {"JAX_COORDINATOR_ADDRESS": "h0:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"},
        4, 2,
    ),
    "ranks of Open MPI, host by host": (
        {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
         "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2, 1
    ),
    "ranks of Open MPI, dealt round": (
        {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
         "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "4"}, 2, None
    ),
    "Open MPI": ({"OMPI_COMM_WORLD_SIZE": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 3, None),
    "SageMaker": ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}, 2, 1),
    "nonsense": ({"SLURM_STEP_NUM_NODES": "two", "SM_HOSTS": "[", "OMPI_COMM_WORLD_SIZE": "-4",
                  "GROUP_WORLD_SIZE": "9" * 30}, 1, None),
    "slices without a TPU": ({"MEGASCALE_NUM_SLICES": "2"}, 1, None),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_A_TPU)
def test_the_hosts_of_a_cluster_are_those_that_its_launcher_names(name: str) -> None:
    env, hosts, worker = WITHOUT_A_TPU[name]
    found = diagnosed({"env": env, "packages": {"tensorflow": "2.18.0"}})
    assert place(found) == (hosts, worker, 1)


def test_a_recording_keeps_the_number_of_hosts_and_hides_their_names() -> None:
    env = {"TPU_PROCESS_ADDRESSES": "secret-a:1,secret-a:2,secret-b:1", "TPU_WORKER_ID": "0"}
    machine = RecordedMachine(
        {
            "env": env,
            "pci": chips(4, "0x006f"),
            "metadata": {f"{ATTRIBUTES}worker-network-endpoints": "secret-a,secret-b"},
        }
    )
    recorder = Recorder(machine)
    before = place(diagnosed({"env": env, "pci": chips(4, "0x006f"), "metadata": {}}))
    diagnose(recorder.machine)
    document = recorder.document()
    assert "secret" not in json.dumps(document)
    assert document["env"]["TPU_PROCESS_ADDRESSES"] == "host-0:1,host-0:2,host-1:1"
    assert document["metadata"][f"{ATTRIBUTES}worker-network-endpoints"] == "worker-0,worker-1"
    assert place(diagnosed(document)) == before == (3, 0, 1)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("secret-a:1,secret-b:1", "host-0:1,host-1:1"), ("root:secret:1\nuser:secret:2\n", ""),
     ("a secret sentence", "")],
)  # fmt: skip
def test_a_file_of_addresses_is_recorded_only_if_it_is_one(text: str, kept: str) -> None:
    document = {
        "env": {"TPU_PROCESS_ADDRESSES_PATH": "/etc/peers"},
        "files": {"/etc/peers": text},
        "pci": chips(4, "0x006f"),
    }
    recorder = Recorder(RecordedMachine(document))
    before = diagnose(recorder.machine)
    recorded = recorder.document()
    if kept:
        assert diagnosed(recorded).hosts == before.hosts == 2
    assert "secret" not in json.dumps(recorded)
    assert recorded["files"]["/etc/peers"] == kept


@pytest.mark.parametrize(
    ("jax", "endpoints", "alone"),
    [("0.6.2", "s1-w-001,s1-w-002", True), ("0.10.2", "s1-w-001,s1-w-002", False),
     ("0.6.2", "a:1:10.0.0.1,b:2:10.0.0.2", False), ("0.6.2", "s1-w-001", False)],
)  # fmt: skip
def test_a_jax_that_would_train_alone_on_a_host_of_compute_engine_is_seen(
    jax: str, endpoints: str, alone: bool
) -> None:
    metadata = {"instance/attributes/worker-network-endpoints": endpoints}
    found = diagnosed(tpu_vm(packages={"jax": jax}, metadata=metadata))
    told = [line for problem in found.problems for line in problem.evidence]
    assert any("every host trains alone" in line for line in told) == alone


def test_a_tpu_of_compute_engine_is_known_by_its_machine_type_alone() -> None:
    metadata = {"instance/machine-type": "projects/1/machineTypes/tpu7x-standard-4t"}
    found = diagnosed(tpu_vm("0x0076", metadata=metadata))
    assert found.runtime == "cloud-tpu-vm"
    assert any("tpu7x-standard-4t" in line for line in found.evidence)
