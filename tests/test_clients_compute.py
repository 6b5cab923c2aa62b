"""Clients of Compute Engine, unmodified, with the emulator (make test-clients)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.clients import Target, emulator_for_clients, need

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

ZONE, REGION, PROJECT = "us-east5-b", "us-east5", "practice"
PLACE = {"project": PROJECT, "zone": ZONE}
TYPE = "ct6e-standard-4t"
SCENARIO = {
    "time_scale": 2000,
    "zones": {ZONE: {"pools": {"ct6e-standard-8t": 0}}, "us-central1-c": {}},
}
IMAGE = ("--image-project=ubuntu-os-accelerator-images",
         "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e")  # fmt: skip

Gcloud = Callable[..., str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("compute")
    with emulator_for_clients(folder, json.dumps(SCENARIO)) as found:
        yield found


@pytest.fixture
def gcloud(target: Target) -> Gcloud:
    need("gcloud")
    return lambda *words, ok=True: target.run("gcloud", "compute", *words, "--quiet", ok=ok)


def test_gcloud_makes_shows_and_deletes_an_instance(gcloud: Gcloud) -> None:
    at = f"--zone={ZONE}"
    ends = ("--max-run-duration=2880h", "--instance-termination-action=STOP")
    spot = ("--provisioning-model=SPOT", *ends)
    keys = ("--labels=owner=ana", "--metadata=enable-guest-attributes=TRUE")
    made = gcloud("instances", "create", "g1", at, f"--machine-type={TYPE}", *IMAGE, *spot, *keys)
    assert "RUNNING" in made
    assert "g1" in gcloud("instances", "list", "--filter=labels.owner=ana")
    assert "Listed 0 items" in gcloud("instances", "list", "--filter=labels.owner=bob")
    shown = json.loads(gcloud("instances", "describe", "g1", at, "--format=json"))
    assert shown["scheduling"]["provisioningModel"] == "SPOT"
    assert shown["resourceStatus"]["scheduling"]["terminationTimestamp"]
    gcloud("instances", "add-labels", "g1", at, "--labels=a=b")
    gcloud("instances", "add-metadata", "g1", at, "--metadata=x=y")
    assert "a: b" in gcloud("instances", "describe", "g1", at)
    assert "Startup finished" in gcloud("instances", "get-serial-port-output", "g1", at)
    gcloud("instances", "simulate-maintenance-event", "g1", at)
    done = gcloud("operations", "list", f"--zones={ZONE}")
    assert "compute.instances.preempted" in done
    gcloud("instances", "create", "g2", at, f"--machine-type={TYPE}", *IMAGE)
    assert "Deleted" in gcloud("instances", "delete", "g2", at)
    assert "was not found" in gcloud("instances", "describe", "g2", at, ok=False)


def test_gcloud_is_told_of_a_stockout_and_of_an_allowlist(gcloud: Gcloud) -> None:
    for machine, text in (
        ("ct6e-standard-8t", "does not have enough resources available to fulfill the request"),
        ("ct5lp-hightpu-4t", "This user agent is not allowed to use the machine type"),
    ):
        create = ("instances", "create", "g3", f"--zone={ZONE}", f"--machine-type={machine}")
        assert text in " ".join(gcloud(*create, *IMAGE, ok=False).split())


def test_gcloud_makes_the_parts_of_a_slice(gcloud: Gcloud, target: Target) -> None:
    """Of these, gcloud 528 cannot send bulk mode: it has a group of one."""
    topology = ("--type=high-throughput", "--accelerator-topology=2x4", f"--region={REGION}")
    policy = ("resource-policies", "create", "workload-policy", "gs", *topology)
    assert "Created" in gcloud(*policy)
    template = ("instance-templates", "create", "gs", f"--machine-type={TYPE}", *IMAGE)
    assert "gs" in gcloud(*template)
    at, groups = f"--zone={ZONE}", ("instance-groups", "managed")
    gcloud(*groups, "create", "gs", at, "--size=1", "--template=gs")
    gcloud(*groups, "wait-until", "gs", at, "--stable", "--timeout=60")
    assert "gs" in gcloud(*groups, "list")
    assert "RUNNING" in gcloud(*groups, "list-instances", "gs", at)
    assert "isStable: true" in gcloud(*groups, "describe", "gs", at)
    used = gcloud("instance-templates", "delete", "gs", ok=False)
    assert "is already being used by" in used
    gcloud(*groups, "delete", "gs", at)
    gcloud("instance-templates", "delete", "gs")
    gcloud("resource-policies", "delete", "gs", f"--region={REGION}")
    assert "Listed 0 items" in gcloud("resource-policies", "list")


def test_gcloud_lists_what_there_is(gcloud: Gcloud) -> None:
    assert TYPE in gcloud("machine-types", "list", f"--zones={ZONE}")
    assert "tpu7x-standard-4t" in gcloud("machine-types", "list", "--filter=name~tpu7x")
    assert ZONE in gcloud("zones", "list")
    assert REGION in gcloud("regions", "describe", REGION)


class Google:
    """Clients of google-cloud-compute for an emulator."""

    def __init__(self, target: Target) -> None:
        self.v1 = pytest.importorskip("google.cloud.compute_v1")
        self._target = target

    def client(self, kind: str) -> Any:
        from google.auth.credentials import AnonymousCredentials

        options = {"api_endpoint": self._target.http}
        make = getattr(self.v1, f"{kind}Client")
        return make(credentials=AnonymousCredentials(), client_options=options)

    def wait(self, operation: Any) -> None:
        """Wait as the library cannot: without `_unary` it asks the real service instead."""
        while operation.status != self.v1.Operation.Status.DONE:
            where = {"project": PROJECT, "operation": operation.name}
            if operation.zone:
                client, where["zone"] = self.client("ZoneOperations"), ZONE
            elif operation.region:
                client, where["region"] = self.client("RegionOperations"), REGION
            else:
                client = self.client("GlobalOperations")
            operation = client.wait(**where)
        assert not operation.error.errors, operation.error


@pytest.fixture
def google(target: Target) -> Google:
    return Google(target)


def test_google_cloud_compute_makes_lists_and_deletes_an_instance(google: Google) -> None:
    v1, client = google.v1, google.client("Instances")
    instance = v1.Instance(
        name="l1",
        machine_type=f"zones/{ZONE}/machineTypes/{TYPE}",
        labels={"owner": "lib"},
        scheduling=v1.Scheduling(
            provisioning_model="FLEX_START",
            instance_termination_action="DELETE",
            automatic_restart=False,
            max_run_duration=v1.Duration(seconds=600_000),
        ),
        metadata=v1.Metadata(items=[v1.Items(key="enable-guest-attributes", value="TRUE")]),
    )
    request = v1.InsertInstanceRequest(
        **PLACE, instance_resource=instance, request_id="11111111-2222-3333-4444-555555555555"
    )
    operation = client.insert_unary(request)
    assert client.insert_unary(request).name == operation.name
    google.wait(operation)
    found = client.get(**PLACE, instance="l1")
    assert (found.status, found.scheduling.max_run_duration.seconds) == ("RUNNING", 600_000)
    assert found.resource_status.scheduling.termination_timestamp
    query = v1.AggregatedListInstancesRequest(project=PROJECT, filter="labels.owner=lib")
    zones = dict(client.aggregated_list(query))
    assert [item.name for item in zones[f"zones/{ZONE}"].instances] == ["l1"]
    assert zones["zones/us-central1-c"].warning.code == "NO_RESULTS_ON_PAGE"
    log = client.get_serial_port_output(**PLACE, instance="l1")
    assert "Startup finished" in log.contents
    google.wait(client.delete_unary(**PLACE, instance="l1"))
    from google.api_core.exceptions import NotFound

    with pytest.raises(NotFound, match="was not found"):
        client.get(**PLACE, instance="l1")


def test_the_trap_of_google_cloud_compute_can_be_avoided(google: Google) -> None:
    """`insert` polls with a client of its own, which does not know the endpoint."""
    client = google.client("Instances")
    operations = google.client("ZoneOperations")
    client.transport._extended_operations_services["zone_operations"] = operations
    body = {"name": "l2", "machine_type": f"zones/{ZONE}/machineTypes/ct6e-standard-8t"}
    from google.api_core.exceptions import ServiceUnavailable

    with pytest.raises(ServiceUnavailable, match="does not have enough resources"):
        client.insert(**PLACE, instance_resource=body).result(timeout=60)


def test_google_cloud_compute_makes_a_slice(google: Google) -> None:
    v1 = google.v1
    groups, templates = google.client("InstanceGroupManagers"), google.client("InstanceTemplates")
    policies = google.client("ResourcePolicies")
    workload = {"type_": "HIGH_THROUGHPUT", "accelerator_topology": "2x4"}
    policy = v1.ResourcePolicy({"name": "ls", "workload_policy": workload})
    in_region = {"project": PROJECT, "region": REGION}
    google.wait(policies.insert_unary(**in_region, resource_policy_resource=policy))
    properties = {"machine_type": TYPE}
    template = v1.InstanceTemplate({"name": "ls", "properties": properties})
    google.wait(templates.insert_unary(project=PROJECT, instance_template_resource=template))
    group = v1.InstanceGroupManager(
        {
            "name": "ls",
            "base_instance_name": "ls-w-###[1]",
            "instance_template": f"projects/{PROJECT}/global/instanceTemplates/ls",
            "target_size": 2,
            "target_size_policy": {"mode": "BULK"},
            "resource_policies": {
                "workload_policy": f"projects/{PROJECT}/regions/{REGION}/resourcePolicies/ls"
            },
            "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
        }
    )
    google.wait(groups.insert_unary(**PLACE, instance_group_manager_resource=group))
    one = {**PLACE, "instance_group_manager": "ls"}
    while not (shown := groups.get(**one)).status.is_stable or not all(
        found.state == "ACTIVE" for found in shown.status.applied_accelerator_topologies
    ):
        assert not list(groups.list_errors(**one))
    managed = list(groups.list_managed_instances(**one))
    assert [item.name for item in managed] == ["ls-w-001", "ls-w-002"]
    assert [item.instance_status for item in managed] == ["RUNNING"] * 2
    google.wait(groups.resize_unary(**one, size=0))
    google.wait(groups.delete_unary(**one))
    google.wait(templates.delete_unary(project=PROJECT, instance_template="ls"))
    google.wait(policies.delete_unary(**in_region, resource_policy="ls"))
    assert "ls" not in [item.name for item in policies.list(**in_region)]


def test_the_discovery_client_of_google(target: Target) -> None:
    discovery = pytest.importorskip("googleapiclient.discovery")
    from google.oauth2.credentials import Credentials

    address = {"api_endpoint": f"{target.place}/compute/v1/"}
    service = discovery.build(
        "compute", "v1", credentials=Credentials(target.token), client_options=address
    )
    found = service.machineTypes().aggregatedList(project=PROJECT, filter=f"name={TYPE}").execute()
    assert found["items"][f"zones/{ZONE}"]["machineTypes"][0]["accelerators"]


def test_gcloud_reaches_an_instance(gcloud: Gcloud, target: Target, tmp_path: Path) -> None:
    need("ssh")
    at = f"--zone={ZONE}"
    key = tmp_path / "key"
    target.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    keys = tmp_path / "keys"
    keys.write_text(f"me:{key.with_suffix('.pub').read_text()}")
    from_file = f"--metadata-from-file=ssh-keys={keys}"
    gcloud("instances", "create", "g4", at, f"--machine-type={TYPE}", *IMAGE, from_file)
    show = ("instances", "describe", "g4", at, "--format=json")
    shown = json.loads(gcloud(*show))
    items = {item["key"]: item["value"] for item in shown["metadata"]["items"]}
    address = shown["networkInterfaces"][0]["networkIP"]
    ssh = (
        "ssh",
        "-i",
        str(key),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    )
    port = items["tpuctl-emulator-ssh-port"]
    url = "$TPUCTL_METADATA_URL/computeMetadata/v1/instance/name"
    command = f"curl -s -H Metadata-Flavor:Google {url}"
    assert "g4" in target.run(*ssh, "-p", port, f"me@{address}", command)
