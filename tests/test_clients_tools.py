"""Tools of others that create and use TPUs, unmodified, with the emulator (make test-clients)."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.cloud import tpu_v2

from tests.clients import VERSION, Target, emulator_for_clients, need, service

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PROJECT, ZONE = "practice", "us-central1-a"
NODES = f"projects/{PROJECT}/locations/{ZONE}/nodes"
NODE = {"acceleratorType": "v5litepod-8", "runtimeVersion": VERSION}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with emulator_for_clients(tmp_path_factory.mktemp("tools")) as found:
        yield found


def gcloud(target: Target, *words: str) -> str:
    need("gcloud")
    return target.run("gcloud", "compute", "tpus", *words, f"--zone={ZONE}", "--quiet")


@pytest.fixture
def pod(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A TPU with four workers, and an ssh that knows their port: the tools assume 22."""
    real = {name: need(name) for name in ("ssh", "scp")}
    kind = ("--accelerator-type=v5litepod-16", f"--version={VERSION}")
    gcloud(target, "tpu-vm", "create", "pod", *kind)
    key = "--format=value(metadata.tpuctl-emulator-ssh-port)"
    port = gcloud(target, "tpu-vm", "describe", "pod", key).strip()
    (tmp_path / "config").write_text(f"Host 127.*\n  Port {port}\n")
    for name, program in real.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {program} -F {tmp_path}/config "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(target.folder))
    yield "pod"
    gcloud(target, "tpu-vm", "delete", "pod")


def test_gcloud_reaches_every_slice_of_a_queued_resource(target: Target) -> None:
    """It reads the nodes' names from the node specs."""
    kind = ("--accelerator-type=v5litepod-1", f"--runtime-version={VERSION}")
    gcloud(target, "queued-resources", "create", "q", "--node-count=2", *kind)
    state = ("queued-resources", "list", "--format=value(state.state,tpu.nodeSpec.len())")
    while gcloud(target, *state).split() != ["ACTIVE", "2"]:
        pass
    command = ("queued-resources", "ssh", "q", "--dry-run", "--command=hostname", "--worker=all")
    # Its threads would make the same key at once, and all but one of them fail.
    gcloud(target, *command, "--node=0")
    said = gcloud(target, *command, "--node=all")
    assert "SSH into 2 nodes with a total of 2 workers" in said
    gcloud(target, "queued-resources", "delete", "q", "--force")


def test_ray(target: Target) -> None:
    """The node provider of Ray's autoscaler; its address is compiled in."""
    node = pytest.importorskip("ray.autoscaler._private.gcp.node")
    tpus = node.GCPTPU(service(target, "tpu", "v2alpha1"), PROJECT, ZONE, "cluster")
    done, name = tpus.create_instance(NODE, {"ray-node-name": "worker"})
    assert done["response"]["state"] == "READY"
    (found,) = tpus.list_instances()
    assert found["name"] == f"{NODES}/{name}"
    assert found.is_running()
    tpus.set_labels(found, {"a": "b"})
    assert tpus.get_instance(found["name"]).get_labels()["a"] == "b"
    tpus.stop_instance(found["name"])
    tpus.start_instance(found["name"])
    tpus.delete_instance(found["name"])
    assert tpus.list_instances() == []


@pytest.mark.parametrize("is_queued", [False, True], ids=["node", "queued"])
def test_skypilot(target: Target, monkeypatch: pytest.MonkeyPatch, is_queued: bool) -> None:
    """Its provisioner of TPU VMs; its address is compiled in."""
    utils = pytest.importorskip("sky.provision.gcp.instance_utils")
    tpus = utils.GCPTPUVMInstance
    monkeypatch.setattr(tpus, "load_resource", lambda: service(target, "tpu", "v2"))
    config: dict[str, Any] = {**NODE, "schedulingConfig": {"preemptible": True}, "labels": {}}
    config |= {"gcp_queued_resource": True} if is_queued else {}
    place = (PROJECT, ZONE)
    cluster = "queued" if is_queued else "plain"
    errors, (name,) = tpus.create_instances(cluster, *place, config, {}, 1, 1, True)
    assert not errors
    wanted = {"ray-cluster-name": cluster}
    full = f"{NODES}/{name}"
    assert list(tpus.filter(*place, wanted, ["READY"])) == [full]
    tpus.set_labels(PROJECT, ZONE, full, {"a": "b"})
    if not is_queued:
        tpus.wait_for_operation(tpus.stop(*place, full), *place)
        assert list(tpus.filter(*place, wanted, ["STOPPED"])) == [full]
    tpus.wait_for_operation(tpus.terminate(*place, full), *place)
    assert list(tpus.filter(*place, wanted, None)) == []


def test_dstack(target: Target) -> None:
    """The parts of its backend that are for TPUs: the rest wants firewalls and subnetworks."""
    compute = pytest.importorskip("dstack._internal.core.backends.gcp.compute")
    resources = pytest.importorskip("dstack._internal.core.backends.gcp.resources")
    from google.oauth2.credentials import Credentials

    kind = tpu_v2.TpuClient.get_transport_class("rest")
    place: dict[str, Any] = {"host": target.place, "url_scheme": "http"}
    client = tpu_v2.TpuClient(transport=kind(**place, credentials=Credentials(target.token)))
    node = resources.create_tpu_node_struct(
        "v5litepod-8", "#!/bin/sh\n", ["ssh-ed25519 AAAA me"], True, {"owner": "dstack"}, VERSION
    )
    parent = NODES.rpartition("/")[0]
    request = tpu_v2.CreateNodeRequest(parent=parent, node_id="dstack", node=node)
    resources.wait_for_operation(client.create_node(request=request), timeout=60)
    backend = object.__new__(compute.GCPCompute)
    backend.tpu_client = client
    backend.config = type("Config", (), {"project_id": PROJECT, "allocate_public_ips": True})()
    data = type("Data", (), {"region": "us-central1", "instance_id": "dstack", "hostname": None})()
    data.backend_data = json.dumps({"is_tpu": True, "zone": ZONE})
    backend.update_provisioning_data(data, "", "")
    assert data.hostname
    assert data.internal_ip
    backend.terminate_instance("dstack", "us-central1", data.backend_data)
    while "dstack" in {each.name.rpartition("/")[2] for each in client.list_nodes(parent=parent)}:
        pass
    # There is nothing to delete any more, which is all right.
    backend.terminate_instance("dstack", "us-central1", data.backend_data)


def test_tpu_runner(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the API, whose address is compiled in, and runs gcloud to change something."""
    need("gcloud")
    gcp = pytest.importorskip("tpu_runner.gcp")
    from google.oauth2.credentials import Credentials

    spec = {
        "name": "fleet", "project": PROJECT, "controller_region": "us-central1",
        "controller_timeout": "1h", "firestore_location": "nam5", "network": "default",
        "subnetwork": "default",
        "tpus": [{"id": "v5e", "type": "v5litepod-8", "zone": ZONE, "runtime": VERSION, "count": 1,
                  "chip_limit": 8}],
    }  # fmt: skip
    fleet = pytest.importorskip("tpu_runner.specs").fleet_spec_from_dict(spec)
    monkeypatch.setattr(gcp, "TPU_API_ROOT", target.place)
    client = gcp.ConcurrentInventoryGCPClient(fleet=fleet, credentials=Credentials(target.token))
    (entry,) = fleet.tpus
    queued, node = gcp.generated_resource_names(entry, 1)
    names = {"queued_resource_name": queued, "node_id": node}
    assert client.list_inventory() == ([], [])
    client.create_queued_resource(fleet=fleet, entry=entry, **names)
    while not (found := client.list_inventory())[0] or not found[0][0].operationally_ready:
        assert not any(each.terminal for each in found[1])
    (vms, requests) = found
    assert gcp.resource_matches_entry(vms[0], entry)
    assert gcp.resource_matches_entry(requests[0], entry)
    for _ in range(2):  # the second finds it gone, or going
        client.delete_queued_resource(name=queued, zone=ZONE, project=PROJECT)
    while client.list_inventory() != ([], []):
        pass


def test_tpu_pod_commander(target: Target, pod: str, tmp_path: Path) -> None:
    """It runs gcloud for everything."""
    pytest.importorskip("tpu_pod_commander.cli")
    place = (f"--project={PROJECT}", f"--zone={ZONE}", "--tpu_user=me")

    def tpc(action: str, *options: str) -> str:
        words = (sys.executable, "-m", "tpu_pod_commander.cli", action)
        return target.run(*words, *place, *options)

    assert "pod" in tpc("list")
    assert tpc("ips", f"--name={pod}").count("127.") == 4
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("print(6 * 7)")
    paths = f"--upload_path={tmp_path}/code:code"
    tpc("upload", f"--name={pod}", paths, "--upload_remove_remote")
    assert tpc("run", f"--name={pod}", "--command=python3 code/a.py").count("42") >= 4
    queue = ("--accelerator_type=v5litepod-8", f"--runtime_version={VERSION}", "--spot")
    tpc("queue", "--name=q", *queue)
    assert "q" in tpc("ls_queue")


def test_eopod(target: Target, pod: str) -> None:
    """It runs gcloud for everything."""
    utils = pytest.importorskip("eopod._utils")
    manager = utils.TPUManager(PROJECT, ZONE, pod)
    assert asyncio.run(manager.get_status())["state"] == "READY"
    assert len(asyncio.run(manager.get_internal_ips())) == 4
    code, out, err = asyncio.run(manager.execute_command("echo $((6 * 7))"))
    assert (code, out.splitlines().count("42")) == (0, 4), err
