"""Slices of Compute Engine: policy, template and managed group, over HTTP."""

from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.compute_world import FLEX, HYPERDISK, SPOT, TYPE, ComputeWorld, error_of

GROUPS = "instanceGroupManagers"
TPU7X = "tpu7x-standard-4t"


def test_a_slice_is_ready_when_all_run_and_the_topology_is_active(practice: Any) -> None:
    world = ComputeWorld(practice, zone="us-central1-c")
    operation = world.slice("2x2x4", 4, TPU7X, properties={"disks": HYPERDISK})
    assert operation["operationType"] == "compute.instanceGroupManagers.insert"
    world.clock.sleep(10)
    assert world.operation(operation)["status"] == "DONE"
    assert world.group()["status"]["currentInstanceStatuses"] == {"provisioning": 4}
    assert world.topology() == "ACTIVATING"
    world.clock.sleep(112)
    assert world.group()["status"]["currentInstanceStatuses"] == {"running": 4}
    assert world.topology() == "ACTIVATING"
    world.clock.sleep(20)
    assert world.topology() == "ACTIVE"
    assert world.group()["status"]["isStable"]
    assert [row["currentAction"] for row in world.managed()] == ["NONE"] * 4


def test_the_hosts_of_a_slice_know_their_places_and_each_other_by_bare_names(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice("4x4", 4)
    world.clock.sleep(130)
    for index in range(4):
        name = f"s1-w-{index}"
        keys = ("agent-worker-number", "worker-network-endpoints", "accelerator-type", "created-by")
        found = [world.metadata(name, f"attributes/{key}")[1] for key in keys]
        assert found[:3] == [str(index), "s1-w-0,s1-w-1,s1-w-2,s1-w-3", "v6e-16"]
        assert found[3].endswith("/zones/us-east5-b/instanceGroupManagers/s1")
        tpu_env = world.metadata(name, "attributes/tpu-env")[1]
        for line in (
            f"TPU_WORKER_ID: '{index}'\n",
            "TOPOLOGY: '4x4'\n",
            "HOST_BOUNDS: '2,2,1'\n",
            "CHIPS_PER_HOST_BOUNDS: '2,2,1'\n",
            "TPU_ACCELERATOR_TYPE: 'v6e-16'\n",
        ):
            assert line in tpu_env


def test_of_tpu7x_the_type_counts_cores(practice: Any) -> None:
    world = ComputeWorld(practice, zone="us-central1-c")
    world.slice("2x2x2", 2, TPU7X, properties={"disks": HYPERDISK})
    world.clock.sleep(130)
    assert world.metadata("s1-w-1", "attributes/accelerator-type") == (200, "v7x-16")


def test_in_bulk_all_instances_are_made_or_none(practice: Any) -> None:
    world = ComputeWorld(practice, of_zone={"capacity_chips": 12})
    world.create()
    operation = world.slice("4x4", 4)
    world.clock.sleep(1000)
    assert "error" not in world.operation(operation)
    status = world.group()["status"]
    assert status["currentInstanceStatuses"] == {"nonExistent": 4}
    error = status["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"][0]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    for row in world.managed():
        assert row["currentAction"] == "CREATING"
        assert row["lastAttempt"]["errors"]["errors"] == [error]
    (first, *rest) = world.ok("GET", f"{GROUPS}/s1/listErrors")["items"]
    assert (first["error"]["code"], len(rest)) == (error["code"], 3)
    assert len(world.ok("GET", "instances")["items"]) == 1


@pytest.mark.parametrize("model", ["on_demand", "flex"])
def test_a_waiting_slice_is_made_as_soon_as_there_is_room(practice: Any, model: str) -> None:
    pools = {model: {"0": 4, "3600": 8}}
    world = ComputeWorld(practice, of_zone={"pools": pools})
    world.slice(properties={"scheduling": FLEX if model == "flex" else {}})
    world.clock.sleep(3590)
    waits = {"pending": 2} if model == "flex" else {"nonExistent": 2}
    assert world.group()["status"]["currentInstanceStatuses"] == waits
    world.clock.sleep(160)
    assert world.topology() == "ACTIVE"


def test_a_flex_slice_that_ends_leaves_group_template_and_policy(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice(properties={"scheduling": FLEX})
    world.clock.sleep(4000)
    assert world.group()["status"]["currentInstanceStatuses"] == {"nonExistent": 2}
    assert world.topology() == "INCOMPLETE"
    assert world.ok("GET", "/global/instanceTemplates/s1")["name"] == "s1"
    assert world.ok("GET", "/regions/us-east5/resourcePolicies/s1")["name"] == "s1"
    assert world.ok("GET", "instances").get("items") == []
    assert world.system() == ["compute.instances.deferredDelete"] * 2


@pytest.mark.parametrize("action", ["STOP", "DELETE"])
def test_a_slice_that_lost_a_host_is_incomplete_or_degraded(practice: Any, action: str) -> None:
    preempt = {"on": "instance", "name": "s1-w-1", "event": "preempt", "at_s": 300}
    world = ComputeWorld(practice, preempt)
    spot = {**SPOT, "instanceTerminationAction": action}
    world.slice(properties={"scheduling": spot})
    world.clock.sleep(290)
    assert world.topology() == "ACTIVE"
    world.clock.sleep(60)
    assert world.topology() == ("INCOMPLETE" if action == "DELETE" else "ACTIVE_DEGRADED")
    world.clock.sleep(10_000)
    assert world.status("s1-w-0") == "RUNNING"
    assert world.status("s1-w-1") == ("gone" if action == "DELETE" else "TERMINATED")


def test_a_group_that_repairs_makes_a_deleted_instance_again(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice(instanceLifecyclePolicy={})
    world.clock.sleep(150)
    before = world.ok("GET", "instances/s1-w-0")["id"]
    world.ok("DELETE", "instances/s1-w-0")
    world.clock.sleep(31)
    assert world.topology() in ("INCOMPLETE", "ACTIVE_DEGRADED")
    assert world.status("s1-w-0") == "PROVISIONING"
    world.clock.sleep(140)
    assert world.topology() == "ACTIVE"
    assert world.ok("GET", "instances/s1-w-0")["id"] != before


def test_one_that_does_nothing_on_failure_does_not(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice()
    world.clock.sleep(150)
    world.ok("DELETE", "instances/s1-w-0")
    assert world.after(10_000, "s1-w-0") == "gone"
    assert world.group()["targetSize"] == 2


def test_the_parts_go_in_the_right_order_only(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice()
    policy, template = "/regions/us-east5/resourcePolicies/s1", "/global/instanceTemplates/s1"
    world.clock.sleep(150)
    for path, user in ((policy, GROUPS), (template, GROUPS)):
        status, reason, text = error_of(world.ask("DELETE", path))
        assert (status, reason) == (400, "resourceInUseByAnotherResource")
        assert text.endswith(f"is already being used by 'projects/p/zones/us-east5-b/{user}/s1'")
    world.ok("DELETE", f"{GROUPS}/s1")
    assert world.status("s1-w-0") == "STOPPING"
    assert error_of(world.ask("DELETE", f"{GROUPS}/s1"))[1] == "resourceNotReady"
    assert error_of(world.ask("DELETE", policy))[1] == "resourceInUseByAnotherResource"
    assert world.after(31, "s1-w-0") == "gone"
    for path in (template, policy):
        operation = world.ok("DELETE", path)
        world.clock.sleep(10)
        assert world.operation(operation)["status"] == "DONE"
        assert world.ask("GET", path)[0] == 404
    assert world.ask("DELETE", f"{GROUPS}/s1")[0] == 404


def test_deleted_while_it_waits_or_is_made_nothing_is_left(practice: Any) -> None:
    for wait_s, chips in ((0, 64), (50, 64), (50, 0)):
        world = ComputeWorld(practice, of_zone={"capacity_chips": chips})
        world.slice(properties={"scheduling": FLEX})
        world.clock.sleep(wait_s)
        world.ok("DELETE", f"{GROUPS}/s1")
        world.clock.sleep(5000)
        assert world.ok("GET", "instances").get("items") == []
        assert world.ask("GET", f"{GROUPS}/s1")[0] == 404
        assert world.emulator.world.free_chips("us-east5-b", reserved=False) == chips


def test_a_wrong_size_fails_in_the_operation_and_leaves_no_group(practice: Any) -> None:
    world = ComputeWorld(practice)
    text = "Target size should be 8 for given accelerator topology but was 2."
    operation = world.slice("4x8", 2)
    assert world.failure(operation, 10)[1] == f"Invalid value for field 'operation': ''. {text}"
    assert world.ask("GET", f"{GROUPS}/s1")[0] == 404


def test_a_slice_is_resized_to_all_or_nothing(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.slice(hosts=0)
    world.clock.sleep(10)
    assert "appliedAcceleratorTopologies" not in world.group()["status"]
    resize = f"{GROUPS}/s1/resize"
    assert "but was 1" in world.failure(world.ok("POST", resize, size="1"), 10)[1]
    world.ok("POST", resize, size="2")
    world.clock.sleep(150)
    assert world.topology() == "ACTIVE"
    one = {"instances": [world.managed()[0]["instance"]]}
    deletion = world.ok("POST", f"{GROUPS}/s1/deleteInstances", one)
    assert "but was 1" in world.failure(deletion, 10)[1]
    world.ok("POST", resize, size="0")
    world.clock.sleep(6)
    assert [row["currentAction"] for row in world.managed()] == ["DELETING"] * 2
    assert world.after(40, "s1-w-0") == "gone"
    assert world.group()["targetSize"] == 0
    world.ok("POST", resize, size="2")
    world.clock.sleep(150)
    assert world.topology() == "ACTIVE"


def test_a_group_takes_no_name_of_another_instance(practice: Any) -> None:
    world = ComputeWorld(practice)
    number = world.create("s1-w-1")["targetId"]
    world.slice()
    world.clock.sleep(300)
    assert world.ok("GET", "instances/s1-w-1")["id"] == number
    assert world.status("s1-w-0") == "gone"
    error = world.managed()[0]["lastAttempt"]["errors"]["errors"][0]
    assert error["code"] == "RESOURCE_ALREADY_EXISTS"


DEAD_ENDS: list[tuple[dict[str, Any], int, str]] = [
        ({"targetSizePolicy": {}}, 400,
         "MIGs with TPU accelerator topology require BULK mode in target size policy"),
        ({"resourcePolicies": {"workloadPolicy": "s1"}}, 400, "The URL is malformed."),
        ({"resourcePolicies": {"workloadPolicy": "projects/p/regions/us-east5/resourcePolicies/x"}},
         404, "resourcePolicies/x' was not found"),
        ({"instanceTemplate": "s1"}, 400, "The URL is malformed."),
        ({"instanceTemplate": "projects/p/global/instanceTemplates/x"}, 404, "was not found"),
        ({"name": "S1"}, 400, "Must be a match of regex"),
        ({"targetSize": -1}, 400, "from 0 to"),
]  # fmt: skip


def test_dead_ends(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.policy()
    world.template()
    for fields, status, text in DEAD_ENDS:
        refused = error_of(world.ask("POST", GROUPS, world.group_body(**fields)))
        assert refused[0] == status
        assert text in refused[2]
    world.ok("POST", GROUPS, world.group_body())
    assert error_of(world.ask("POST", GROUPS, world.group_body()))[1] == "alreadyExists"
    request = world.ask("POST", f"{GROUPS}/s1/resizeRequests", {"name": "r", "resizeBy": 2})
    expected = "Creating resize requests for managed instance group with TPU is not allowed"
    assert error_of(request)[2] == expected


def test_links_may_leave_out_the_project(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.policy()
    world.template()
    policy = {"workloadPolicy": "regions/us-east5/resourcePolicies/s1"}
    fields: dict[str, Any] = {
        "instanceTemplate": "global/instanceTemplates/s1",
        "resourcePolicies": policy,
    }
    world.ok("POST", GROUPS, world.group_body(**fields))
    assert world.group()["instanceTemplate"].endswith("/projects/p/global/instanceTemplates/s1")


def test_a_placement_policy_is_not_for_tpu7x(practice: Any) -> None:
    world = ComputeWorld(practice, zone="us-central1-c")
    policies = "/regions/us-central1/resourcePolicies"
    world.ok("POST", policies, {"name": "s1", "groupPlacementPolicy": {"vmCount": 2}})
    world.template(machine=TPU7X, disks=HYPERDISK)
    assert error_of(world.ask("POST", GROUPS, world.group_body()))[2] == (
        "Creation of a managed instance group with tpu7x-standard-4t machine type with placement"
        " policy is not supported. Use workload policy instead."
    )


MALFORMED: list[tuple[str, Any, str]] = [
        ("/global/instanceTemplates", {"machineType": "ct9-standard-4t"}, "does not exist"),
        ("/global/instanceTemplates", {"machineType": f"zones/z/machineTypes/{TYPE}"}, "malformed"),
        ("/global/instanceTemplates", {"machineType": TYPE, "networkInterfaces": [
            {"subnetwork": "default"}]}, "The URL is malformed."),
        ("/regions/us-east5/instanceTemplates", {"machineType": TYPE, "scheduling": {
            "provisioningModel": "SPOT"}}, "AutomaticRestart"),
        ("/regions/us-east5/resourcePolicies", {"type": "FAST"}, "not known"),
        ("/regions/us-east5/resourcePolicies", {"type": "HIGH_THROUGHPUT",
            "acceleratorTopology": "2x4", "maxTopologyDistance": "BLOCK"}, "mutually exclusive"),
        ("/regions/us-east5/resourcePolicies", {"type": "HIGH_THROUGHPUT",
            "acceleratorTopology": "8"}, "such as 2x4"),
]  # fmt: skip


def test_templates_and_policies_are_checked(practice: Any) -> None:
    world = ComputeWorld(practice)
    for path, body, text in MALFORMED:
        key = "properties" if "Templates" in path else "workloadPolicy"
        assert text in error_of(world.ask("POST", path, {"name": "s1", key: body}))[2]
        assert error_of(world.ask("POST", path, {"name": "s1"}))[0] == 400


def test_a_template_takes_a_type_that_the_project_may_not_use(practice: Any) -> None:
    world = ComputeWorld(practice, zone="us-west4-a")
    world.policy(topology="2x4")
    world.template(machine="ct5lp-hightpu-4t")
    refused = error_of(world.ask("POST", GROUPS, world.group_body()))
    assert refused[:2] == (403, "forbidden")


def test_names_of_instances_and_regional_templates(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.policy()
    body = {"name": "s1", "properties": {"machineType": TYPE}}
    made = world.ok("POST", "/regions/us-east5/instanceTemplates", body)
    fields = {"baseInstanceName": "s1-w-###[1]", "instanceTemplate": made["targetLink"]}
    world.ok("POST", GROUPS, world.group_body(**fields))
    assert [row["name"] for row in world.managed()] == ["s1-w-001", "s1-w-002"]
    world.ok("POST", GROUPS, world.group_body(**{**fields, "baseInstanceName": "x"}, name="s1")
             | {"name": "s2"})  # fmt: skip
    rows = world.ok("POST", f"{GROUPS}/s2/listManagedInstances")["managedInstances"]
    assert {row["targetStatus"] for row in rows} == {"RUNNING"}
    group = world.ok("GET", f"{GROUPS}/s2")
    assert group["versions"][0]["targetSize"] == {"calculated": len(rows)}
    assert group["instanceGroup"].endswith("/instanceGroups/s2")
    assert all(len(row["name"]) == 6 for row in rows)
    found = world.ok("GET", "/aggregated/instanceGroupManagers")["items"]["zones/us-east5-b"]
    assert [item["name"] for item in found[GROUPS]] == ["s1", "s2"]
    policies = world.ok("GET", "/aggregated/resourcePolicies")["items"]["regions/us-east5"]
    assert [item["name"] for item in policies["resourcePolicies"]] == ["s1"]


@pytest.mark.parametrize(
    "method",
    ["resource_policies_insert", "instance_templates_insert", "instance_group_managers_insert",
     "instance_group_managers_delete", "instance_templates_delete", "resource_policies_delete"],
)  # fmt: skip
def test_each_step_can_lose_its_reply_and_be_repeated(practice: Any, method: str) -> None:
    lost = {"on": f"compute_{method}", "after_accept": True}
    world = ComputeWorld(practice, lost)
    steps: list[tuple[str, str, Any]] = [
        ("POST", "/regions/us-east5/resourcePolicies",
         {"name": "s1", "workloadPolicy": {"type": "HIGH_AVAILABILITY"}}),
        ("POST", "/global/instanceTemplates", {"name": "s1", "properties": {"machineType": TYPE}}),
        ("POST", GROUPS, world.group_body(0)),
        ("DELETE", f"{GROUPS}/s1", None),
        ("DELETE", "/global/instanceTemplates/s1", None),
        ("DELETE", "/regions/us-east5/resourcePolicies/s1", None),
    ]  # fmt: skip
    replies = []
    for number, (verb, path, body) in enumerate(steps):
        request = f"00000000-0000-0000-0000-00000000000{number + 1}"
        replies.append(world.ask(verb, path, body, requestId=request)[0])
        world.ok(verb, path, body, requestId=request)
        world.clock.sleep(60)
    assert sorted(replies) == [200] * 5 + [503]
    assert world.emulator.advance().compute.resources == {}
