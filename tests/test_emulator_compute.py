"""Instances of Compute Engine: what the service does and refuses, over HTTP."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.compute_world import ENDS, FLEX, HYPERDISK, SPOT, TYPE, ZONE, ComputeWorld, error_of
from tests.emulator_world import START
from tpuctl.emulator.errors import load_data
from tpuctl.emulator.faults import COMPUTE_ERRORS, UNFINISHED
from tpuctl.emulator.service import Store

INSTANCE = f"projects/p/zones/{ZONE}/instances/t1"
STOCKOUT = (
    "The zone 'projects/p/zones/us-east5-b' does not have enough resources available to fulfill the"
    " request.  'NULL:0/NULL:0/NULL:0 (state:STOCKOUT, sub-state:STOCKOUT, resource type:compute)'."
)


def instance_event(event: str, at_s: float = 200, **fields: Any) -> dict[str, Any]:
    return {"on": "instance", "event": event, "at_s": at_s, **fields}


def test_an_instance_goes_through_its_states_and_its_operation_is_done_when_it_runs(
    practice: Any,
) -> None:
    world = ComputeWorld(practice)
    operation = world.create(labels={"a": "b"}, networkInterfaces=[{"accessConfigs": [{}]}])
    assert (operation["status"], operation["operationType"]) == ("RUNNING", "insert")
    assert [world.after(s) for s in (0, 40, 60)] == ["PROVISIONING", "STAGING", "STAGING"]
    assert world.operation(operation)["status"] == "RUNNING"
    assert world.after(30) == "RUNNING"
    assert world.operation(operation)["progress"] == 100
    shown = world.ok("GET", "instances/t1")
    assert shown["kind"] == "compute#instance"
    assert isinstance(shown["id"], str)
    assert shown["machineType"].endswith(f"zones/{ZONE}/machineTypes/{TYPE}")
    (interface,) = shown["networkInterfaces"]
    assert interface["networkIP"].startswith("127.")
    assert interface["accessConfigs"][0]["natIP"].startswith("127.")
    assert (shown["deletionProtection"], interface["stackType"]) == (False, "IPV4_ONLY")
    assert [(disk["type"], disk["deviceName"]) for disk in shown["disks"]] == [
        ("PERSISTENT", "persistent-disk-0")
    ]
    deletion = world.ok("DELETE", "instances/t1")
    assert deletion["targetId"] == shown["id"]
    assert world.status() == "STOPPING"
    assert error_of(world.ask("DELETE", "instances/t1"))[1] == "resourceNotReady"
    assert world.after(30) == "gone"
    assert world.operation(deletion)["status"] == "DONE"
    assert error_of(world.ask("GET", "instances/t1")) == (
        404, "notFound", f"The resource '{INSTANCE}' was not found"
    )  # fmt: skip


def test_the_same_request_id_is_the_same_operation_and_no_second_instance(practice: Any) -> None:
    world = ComputeWorld(practice)
    request, body = str(uuid4()), world.body("t1")
    first = world.ok("POST", "instances", body, requestId=request)
    world.clock.sleep(10_000)
    assert world.ok("POST", "instances", body, requestId=request)["name"] == first["name"]
    other = world.ask("POST", "instances", world.body("t2"), requestId=request)
    assert error_of(other)[:2] == (400, "invalid")
    nil = "00000000-0000-0000-0000-000000000000"
    assert error_of(world.ask("POST", "instances", body, requestId=nil))[0] == 400
    assert world.refused() == (409, "alreadyExists", f"The resource '{INSTANCE}' already exists")


def test_a_lost_reply_leaves_the_instance_and_its_request_id(practice: Any) -> None:
    lost = {"on": "compute_instances_insert", "after_accept": True}
    world = ComputeWorld(practice, lost)
    request, body = str(uuid4()), world.body("t1")
    assert world.ask("POST", "instances", body, requestId=request)[0] == 503
    assert world.ok("POST", "instances", body, requestId=request)["operationType"] == "insert"
    assert world.status() == "PROVISIONING"


def test_a_stockout_comes_with_the_operation_and_says_what_was_wanted(practice: Any) -> None:
    world = ComputeWorld(practice, of_zone={"capacity_chips": 4})
    world.create("t1")
    operation = world.create("t2")
    assert world.failure(operation, 20) == ("ZONE_RESOURCE_POOL_EXHAUSTED", STOCKOUT)
    found = world.operation(operation)
    assert (found["httpErrorStatusCode"], found["httpErrorMessage"]) == (503, "SERVICE UNAVAILABLE")
    info = found["error"]["errors"][0]["errorDetails"][0]["errorInfo"]
    assert (info["reason"], info["metadatas"]["vmType"]) == ("stockout", TYPE)
    assert world.status("t2") == "gone"
    assert world.after(120) == "RUNNING"


@pytest.mark.parametrize("pool", ["spot", TYPE, f"{TYPE}/spot"])
def test_pools_hold_the_chips_of_a_model_or_a_type(practice: Any, pool: str) -> None:
    world = ComputeWorld(practice, of_zone={"pools": {pool: 4}})
    world.create("t1", scheduling=SPOT)
    assert world.failure(world.create("t2", scheduling=SPOT), 20)[1] == STOCKOUT
    other = world.create(
        "t3", scheduling={} if "spot" in pool else SPOT, machine="ct6e-standard-1t"
    )
    world.clock.sleep(120)
    assert "error" not in world.operation(other) or pool == "spot"


def test_the_chips_of_a_zone_are_those_of_both_apis(practice: Any) -> None:
    world = ComputeWorld(practice, of_zone={"types": ["v6e-8"], "capacity_chips": 8})
    world.create()
    node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
    place, headers = f"/v2/projects/p/locations/{ZONE}", {"Authorization": ""}
    headers["Authorization"] = f"Bearer {world.world.token()}"
    _, operation, _ = world.world.http("POST", f"{place}/nodes?nodeId=n1", node, **headers)
    world.clock.sleep(20)
    _, found, _ = world.world.http("GET", f"/v2/{operation['name']}", **headers)
    assert "no more capacity" in found["error"]["message"]


def test_quota_is_per_region_and_family_and_is_looked_at_after_capacity(practice: Any) -> None:
    regions = {"us-east5": {"quota_chips": 4, "spot_quota_chips": 0}}
    world = ComputeWorld(practice, compute={"regions": regions}, of_zone={"capacity_chips": 8})
    world.create("t1")
    text = "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 4.0 in region us-east5."
    assert world.failure(world.create("t2"), 20) == ("QUOTA_EXCEEDED", text)
    assert "PREEMPTIBLE_TPU_V6E" in world.failure(world.create("t3", scheduling=SPOT), 20)[1]
    assert world.failure(world.create("t4", "ct6e-standard-8t"), 20)[1] == STOCKOUT


REFUSED: list[tuple[dict[str, Any], str]] = [
        ({"machine": "ct5lp-hightpu-1t"}, "not allowed to use the machine type [ct5lp-"),
        ({"machine": "n2-standard-8"}, "The referenced resource does not exist."),
        ({"name": "T1"}, "Must be a match of regex"),
        ({"scheduling": {"provisioningModel": "SPOT"}}, "Scheduling must have preemptible be false"
                                                        " when AutomaticRestart is true."),
        ({"scheduling": {**FLEX, "maxRunDuration": {"seconds": "60"}}}, "10 minutes to 7 days"),
        ({"scheduling": {**FLEX, "instanceTerminationAction": "STOP"}}, "Action DELETE"),
        ({"scheduling": {**FLEX, "provisioningModel": "MAYBE"}}, "not known"),
        ({"scheduling": FLEX, "params": {"requestValidForDuration": {"seconds": "7201"}}}, "7200"),
        ({"resourcePolicies": ["projects/p/regions/us-east5/resourcePolicies/s1"]},
         "Resource policy must have one of [VmMaintenancePolicy, GroupPlacementPolicy,"),
        ({"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION",
          "key": "compute.googleapis.com/reservation-name", "values": ["mine"]}}, "Reservation"),
        ({"disks": [{"initializeParams": {"sourceImage": "projects/ubuntu-os-accelerator-images/"
          "global/images/family/ubuntu-tpu"}}]}, "family/ubuntu-tpu' was not found"),
]  # fmt: skip


def test_what_an_instance_may_not_be(practice: Any) -> None:
    world = ComputeWorld(practice, of_zone={"machine_types": [TYPE, "ct5lp-hightpu-1t"]})
    for fields, text in REFUSED:
        assert text in world.refused(**fields)[2]
        assert world.status() == "gone"
    world.create()


@pytest.mark.parametrize(
    ("machine", "disks", "text"),
    [
        ("tpu7x-standard-4t", [], ""),
        ("tpu7x-standard-4t", [{"initializeParams": {"diskType": "pd-ssd"}}], "pd-ssd disk type"),
        ("tpu7x-standard-4t", HYPERDISK, ""),
        ("ct5p-hightpu-4t", HYPERDISK, "hyperdisk-balanced disk type cannot be used by ct5p-"),
        ("ct5p-hightpu-4t", [{"initializeParams": {}}], ""),
    ],
)
def test_each_generation_has_its_disks(practice: Any, machine: str, disks: Any, text: str) -> None:
    types = ["tpu7x-standard-4t", "ct5p-hightpu-4t"]
    world = ComputeWorld(practice, of_zone={"machine_types": types})
    status, answer = world.ask("POST", "instances", world.body("t1", machine, disks=disks))
    assert (status == 400 and text in answer["error"]["message"]) if text else status == 200


def test_flex_start_waits_for_chips_then_runs(practice: Any) -> None:
    pools = {"flex": {"0": 0, "600": 4}}
    world = ComputeWorld(practice, of_zone={"pools": pools})
    valid = {"requestValidForDuration": {"seconds": "7200"}}
    operation = world.create(scheduling=FLEX, params=valid)
    assert world.after(500) == "PENDING"
    assert world.operation(operation)["status"] == "RUNNING"
    assert world.after(150) == "STAGING"
    assert world.after(100) == "RUNNING"
    assert world.operation(operation)["status"] == "DONE"
    assert world.after(7200) == "gone"


@pytest.mark.parametrize(("seconds", "lives"), [("900", True), ("0", False)])
def test_a_flex_start_request_that_lapses_deletes_itself(
    practice: Any, seconds: str, lives: bool
) -> None:
    world = ComputeWorld(practice, of_zone={"pools": {"flex": 0}})
    valid = {"requestValidForDuration": {"seconds": seconds}}
    operation = world.create(scheduling=FLEX, params=valid)
    assert world.after(890) == ("PENDING" if lives else "gone")
    assert world.after(20) == "gone"
    assert world.failure(operation)[0] == "ZONE_RESOURCE_POOL_EXHAUSTED"


def test_a_flex_start_without_quota_waits_too_and_can_be_slow_to_delete(practice: Any) -> None:
    none = {"quota_chips": 0, "spot_quota_chips": 0, "pending_delete_s": 2340}
    world = ComputeWorld(practice, compute=none)
    operation = world.create(
        scheduling=FLEX, params={"requestValidForDuration": {"seconds": "7200"}}
    )
    assert world.after(60) == "PENDING"
    world.ok("DELETE", "instances/t1")
    assert world.after(2300) == "STOPPING"
    assert world.after(60) == "gone"
    assert world.failure(operation)[0] == "OPERATION_CANCELED_BY_USER"


@pytest.mark.parametrize(
    ("action", "verb", "end"),
    [("DELETE", "deferredDelete", "gone"), ("STOP", "deferredStop", "TERMINATED")],
)
def test_the_server_ends_an_instance_when_its_run_is_over(
    practice: Any, action: str, verb: str, end: str
) -> None:
    world = ComputeWorld(practice)
    world.create(scheduling={**ENDS, "instanceTerminationAction": action})
    world.clock.sleep(120)
    resource = world.ok("GET", "instances/t1")["resourceStatus"]
    assert resource["scheduling"]["terminationTimestamp"] == "2026-11-20T10:02:00.000+00:00"
    assert world.after(3590) == "RUNNING"
    assert world.after(50) == end
    assert world.system() == [f"compute.instances.{verb}"]


def test_the_end_can_be_moved_while_it_runs_and_not_while_it_is_made(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.create(scheduling=ENDS)
    later = {"maxRunDuration": {"seconds": "7200"}}
    path = "instances/t1/setScheduling"
    assert error_of(world.ask("POST", path, later))[2].endswith("is not ready")
    world.clock.sleep(120)
    world.ok("POST", path, later)
    assert world.after(3700) == "RUNNING"
    assert world.after(3700) == "gone"


def test_an_instance_that_ended_by_a_given_time_is_gone(practice: Any) -> None:
    world = ComputeWorld(practice)
    ends = {"terminationTime": "2026-11-20T09:10:00Z", "instanceTerminationAction": "DELETE"}
    assert "mutually exclusive" in world.refused(scheduling={**ENDS, **ends})[2]
    world.create(scheduling=ends)
    assert world.after(590) == "RUNNING"
    assert world.after(60) == "gone"


@pytest.mark.parametrize(("action", "end"), [("DELETE", "gone"), ("STOP", "TERMINATED")])
def test_a_preempted_instance_says_so_for_a_while_then_is_stopped_or_gone(
    practice: Any, action: str, end: str
) -> None:
    world = ComputeWorld(practice, instance_event("preempt"))
    world.create(scheduling={**SPOT, "instanceTerminationAction": action})
    assert world.after(190) == "RUNNING"
    assert world.metadata("t1", "preempted") == (200, "FALSE")
    assert world.after(15) == "STOPPING"
    assert world.metadata("t1", "preempted") == (200, "TRUE")
    assert world.after(30) == end
    assert world.system() == ["compute.instances.preempted"]
    if end == "TERMINATED":
        shown = world.ok("GET", "instances/t1")
        assert "lastStopTimestamp" in shown
        assert "preempted" in shown["statusMessage"]
        assert world.emulator.world.free_chips(ZONE, reserved=False) == 512


def test_preempted_while_it_is_made_its_operation_says_unsupported(practice: Any) -> None:
    world = ComputeWorld(practice, instance_event("preempt", 60))
    operation = world.create(scheduling=SPOT)
    assert world.failure(operation, 60)[0] == "UNSUPPORTED_OPERATION"
    assert world.status() == "gone"


def test_a_simulated_maintenance_preempts_spot_and_stops_others(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.create("t1", scheduling=SPOT)
    world.create("t2", scheduling={"automaticRestart": False})
    world.clock.sleep(120)
    for name in ("t1", "t2"):
        world.ok("POST", f"instances/{name}/simulateMaintenanceEvent")
    world.clock.sleep(10)
    event = "TERMINATE_ON_HOST_MAINTENANCE"
    assert world.metadata("t2", "maintenance-event") == (200, event)
    assert [world.after(60, name) for name in ("t1", "t2")] == ["gone", "TERMINATED"]
    verbs = ["preempted", "terminateOnHostMaintenance"]
    assert world.system() == [f"compute.instances.{verb}" for verb in verbs]


def test_a_body_of_an_empty_text_is_none(practice: Any) -> None:
    """Google's client for Node sends it for each method without a body."""
    world = ComputeWorld(practice)
    world.create("t1")
    world.clock.sleep(120)
    assert world.ok("POST", "instances/t1/stop", '""')["operationType"] == "stop"
    assert world.ask("POST", "instances/t1/stop", '"x"')[0] == 400


def test_a_host_error_restarts_what_wants_to_be_restarted(practice: Any) -> None:
    world = ComputeWorld(practice, instance_event("host_error", every=True))
    world.create("t1")
    world.create("t2", scheduling={"automaticRestart": False})
    assert world.after(210, "t2") == "TERMINATED"
    assert world.status("t1") == "REPAIRING"
    assert world.after(120) == "RUNNING"
    verbs = ["hostError", "automaticRestart", "hostError"]
    assert sorted(world.system()) == sorted(f"compute.instances.{verb}" for verb in verbs)


def test_who_deleted_an_instance_can_be_told_from_its_operations(practice: Any) -> None:
    world = ComputeWorld(practice, instance_event("vanish", name="t3"))
    ids = {}
    for name, scheduling in (("t1", SPOT), ("t2", ENDS), ("t3", {}), ("t4", {})):
        ids[name] = world.create(name, scheduling=scheduling)["targetId"]
    world.clock.sleep(120)
    world.ok("POST", "instances/t1/simulateMaintenanceEvent")
    world.ok("DELETE", "instances/t4")
    world.clock.sleep(5000)
    told = {
        name: [
            item["operationType"].rpartition(".")[2]
            for item in world.ok("GET", "operations", filter=f"(targetId={number})")["items"]
            if item["operationType"] not in ("insert",)
        ]
        for name, number in ids.items()
    }
    assert sorted(told["t1"]) == ["preempted", "simulateMaintenanceEvent"]
    assert (told["t2"], told["t3"], told["t4"]) == (["deferredDelete"], [], ["delete"])
    everywhere = world.ok("GET", "/aggregated/operations")["items"][f"zones/{ZONE}"]["operations"]
    assert len(everywhere) == 8


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"error": "disguised_stockout", "after_s": 720}, "INTERNAL_ERROR"),
        ({"error": "stockout_details"}, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        ({"error": "quota", "where": "operation"}, "QUOTA_EXCEEDED"),
        ({"error": "external_ip", "where": "operation"}, "CONDITION_NOT_MET"),
    ],
)
def test_planned_failures_of_an_operation(practice: Any, fault: Any, code: str) -> None:
    where = {"where": "operation"}
    world = ComputeWorld(practice, {"on": "compute_instances_insert", **where, **fault})
    operation = world.create()
    assert world.failure(operation, 720)[0] == code
    assert world.status() == "gone"
    assert world.operation(world.create())["status"] == "RUNNING"


REFUSALS = [
    ("quota", 403, "quotaExceeded"), ("allowlist", 403, "forbidden"),
    ("rate_limit", 403, "rateLimitExceeded"), ("unavailable", 503, "backendError"),
    ("internal", 500, "internalError"), ("permission", 403, "forbidden"),
    ("api_disabled", 403, "accessNotConfigured"), ("deadline", 504, "backendError"),
    ("subnet", 400, "invalid"),
]  # fmt: skip


def test_planned_refusals(practice: Any) -> None:
    faults = [
        {"on": "compute_instances_insert", "name": error.replace("_", "-"), "error": error}
        for error, _, _ in REFUSALS
    ]
    world = ComputeWorld(practice, *faults)
    for error, status, reason in REFUSALS:
        name = error.replace("_", "-")
        assert world.refused(name)[:2] == (status, reason)
        world.create(name)


def test_every_error_of_the_table_can_be_planned(practice: Any) -> None:
    errors = [error for error in COMPUTE_ERRORS if error != UNFINISHED]
    read = "compute_instances_get"
    plans = [{"on": read, "nth": nth + 1, "error": error} for nth, error in enumerate(errors)]
    world = ComputeWorld(practice, *plans)
    for error in errors:
        status, _, text = error_of(world.ask("GET", "instances/t1"))
        assert status == load_data("compute_errors")["errors"][error]["status"]
        assert "{" not in text


def test_an_unfinished_operation_and_a_failed_deletion(practice: Any) -> None:
    never = {"on": "compute_instances_insert", "error": "unfinished"}
    fails = {"on": "compute_instances_delete", "error": "internal", "where": "operation"}
    world = ComputeWorld(practice, never, fails)
    operation = world.create()
    assert world.after(10_000) == "RUNNING"
    assert world.operation(operation)["status"] == "RUNNING"
    assert world.failure(world.ok("DELETE", "instances/t1"), 60)[0] == "INTERNAL_ERROR"
    assert world.status() == "RUNNING"


def test_external_addresses_can_be_forbidden_and_reservations_used(practice: Any) -> None:
    world = ComputeWorld(practice, compute={"external_ip": False}, of_zone={"reserved_chips": 4})
    refused = world.refused(networkInterfaces=[{"accessConfigs": [{}]}])
    assert "constraints/compute.vmExternalIpAccess violated" in refused[2]
    affinity = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["practice"]}
    bound = {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"}
    assert "SPECIFIC_RESERVATION" in world.refused(scheduling=bound)[2]
    world.create(scheduling=bound, reservationAffinity=affinity)
    second = world.create("t2", reservationAffinity=affinity)
    assert world.failure(second, 20)[0] == "RESERVATION_CAPACITY_EXCEEDED"
    (found,) = world.ok("GET", "reservations")["items"]
    assert found["aggregateReservation"]["vmFamily"].endswith("CT6E")


def test_metadata_and_labels_change_with_the_right_fingerprint_only(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.create(metadata={"items": [{"key": "a", "value": "1"}]})
    metadata = world.ok("GET", "instances/t1")["metadata"]
    items = [{"key": "b", "value": "2"}]
    path = "instances/t1/setMetadata"
    wrong = {"items": items, "fingerprint": "AAAA"}
    assert error_of(world.ask("POST", path, wrong))[:2] == (412, "conditionNotMet")
    world.ok("POST", path, {"items": items, "fingerprint": metadata["fingerprint"]})
    world.clock.sleep(10)
    assert world.metadata("t1", "attributes/b") == (200, "2")
    assert world.metadata("t1", "attributes/a")[0] == 404
    labels = {
        "labels": {"x": "y"},
        "labelFingerprint": world.ok("GET", "instances/t1")["labelFingerprint"],
    }
    world.ok("POST", "instances/t1/setLabels", labels)
    world.clock.sleep(10)
    assert world.ok("GET", "instances", filter="labels.x=y")["items"][0]["name"] == "t1"


def test_guest_attributes_and_the_serial_port_are_there_for_who_asks(practice: Any) -> None:
    world = ComputeWorld(practice)
    world.create(metadata={"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]})
    world.create("t2")
    world.clock.sleep(130)
    machine = f"/vm/p/{ZONE}/t1/vm/computeMetadata/v1/instance/guest-attributes/job/code"
    assert world.world.http("PUT", machine, "17", Metadata_Flavor="Google")[0] == 200
    refused = machine.replace("t1", "t2")
    assert world.world.http("PUT", refused, "17", Metadata_Flavor="Google")[0] == 403
    found = world.ok("GET", "instances/t1/getGuestAttributes", queryPath="job/")
    assert found["queryValue"]["items"] == [{"namespace": "job", "key": "code", "value": "17"}]
    assert world.ask("GET", "instances/t2/getGuestAttributes", queryPath="hostkeys/")[0] == 404
    log = world.ok("GET", "instances/t1/serialPort", port="1")
    assert "Startup finished" in log["contents"]
    assert world.ok("GET", "instances/t1/serialPort", start=log["next"])["contents"] == ""


@pytest.mark.parametrize("known", [False, True])
def test_a_single_host_has_the_keys_of_a_slice_only_if_the_scenario_says_so(
    practice: Any, known: bool
) -> None:
    world = ComputeWorld(practice, compute={"single_host_attributes": known})
    world.create()
    world.clock.sleep(120)
    assert world.metadata("t1", "attributes/accelerator-type") == (200, "v6e-4")
    assert world.metadata("t1", "attributes/agent-worker-number")[0] == (200 if known else 404)


FILTERS = [
    ("", "abc"), ("labels.k=1", "ab"), ("labels.k=1 name=a", "a"), ("(name=a) OR (name=c)", "ac"),
    ("NOT name=a", "bc"), ("name eq '[ab]'", "ab"), ("labels.k=*", "ab"), ("labels.k:*", "ab"),
    ("name!=a", "bc"), ("(labels.k=1 AND (name=b OR name=c))", "b"), ('labels.k="1"', "ab"),
    ("labels.a.b=2", "c"), ("scheduling.preemptible=false", "abc"), ("status=RUNNING", ""),
]  # fmt: skip


def test_filters(practice: Any) -> None:
    world = ComputeWorld(practice)
    for name, labels in (("a", {"k": "1"}), ("b", {"k": "1"}), ("c", {"a.b": "2"})):
        world.create(name, labels=labels)
    for text, names in FILTERS:
        found = world.ok("GET", "instances", **({"filter": text} if text else {})).get("items", [])
        assert "".join(item["name"] for item in found) == names, text
    for wrong in ("name=", "(name=a", "name", "=a", "name=a)", "name == a b"):
        assert error_of(world.ask("GET", "instances", filter=wrong))[1] == "invalid", wrong


def test_one_request_lists_all_zones_in_pages_and_names_those_that_do_not_answer(
    practice: Any,
) -> None:
    zones: dict[str, Any] = {"us-east5-b": {}, "europe-west4-a": {}, "us-east5-a": {}}
    fault = {
        "on": "compute_instances_aggregated_list",
        "zone": "europe-*",
        "nth": 4,
        "error": "unavailable",
    }
    world = ComputeWorld(practice, fault, zones=zones)
    for zone in zones:
        world.zone = zone
        for name in ("a", "b"):
            world.create(name)
    first = world.ok("GET", "/aggregated/instances", maxResults="3", returnPartialSuccess="true")
    second = world.ok("GET", "/aggregated/instances", pageToken=first["nextPageToken"])
    counts = [len(item.get("instances", [])) for item in first["items"].values()]
    assert counts == [2, 1, 0]
    assert first["items"]["zones/us-east5-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert [len(item.get("instances", [])) for item in second["items"].values()] == [0, 1, 2]
    assert "nextPageToken" not in second
    assert "unreachables" not in world.ok("GET", "/aggregated/instances")
    broken = world.ok("GET", "/aggregated/instances")
    assert broken["unreachables"] == ["zones/europe-west4-a"]
    assert "zones/europe-west4-a" not in broken["items"]


def test_machine_types_have_their_chips_and_a_second_name(practice: Any) -> None:
    world = ComputeWorld(practice)
    found = world.ok("GET", "/aggregated/machineTypes", filter=f"name={TYPE}")
    (machine,) = found["items"][f"zones/{ZONE}"]["machineTypes"]
    kind = {"guestAcceleratorType": "ct6e", "guestAcceleratorCount": 4}
    assert machine["accelerators"] == [kind]
    twin = world.ok("GET", f"machineTypes/{TYPE}-tpu")
    assert twin["accelerators"][0]["guestAcceleratorType"] == "tpu-v6e"
    assert world.ask("GET", "machineTypes/n2-standard-8")[0] == 404
    world.create(machine=f"{TYPE}-tpu")


def test_what_is_only_listed(practice: Any) -> None:
    world = ComputeWorld(practice)
    image = "ubuntu-accel-2404-amd64-tpu-tpu7x"
    for path in (
        "", f"/zones/{ZONE}", "/zones", "/regions/us-east5", "/regions", "/global/networks/default",
        "/regions/us-east5/subnetworks/default", "/aggregated/reservations",
        "/aggregated/resourcePolicies", "/aggregated/instanceGroupManagers",
        "/aggregated/instanceTemplates", f"/global/images/family/{image}",
        f"/zones/{ZONE}/imageFamilyViews/{image}", "/global/operations",
        "/regions/us-east5/operations", f"/zones/{ZONE}/instanceGroupManagers",
        "/global/networks",
    ):  # fmt: skip
        status, answer, _ = world.world.http("GET", f"/compute/v1/projects/p{path}")
        assert status == 200, path
        assert answer.get("image", answer)["kind"].startswith("compute#")


def test_what_is_only_listed_has_numbers_that_differ_and_stay(practice: Any) -> None:
    world, found = ComputeWorld(practice), []
    for path in ("/zones", "/regions", "machineTypes", "/global/networks"):
        items = world.ok("GET", path)["items"]
        assert items == world.ok("GET", path)["items"]
        assert all(item["creationTimestamp"] for item in items)
        found += [int(item["id"]) for item in items]
    assert len(set(found)) == len(found)


def test_images_for_tpus_are_found_in_their_project(practice: Any) -> None:
    world = ComputeWorld(practice, project="p")

    def ask(project: str, path: str = "") -> Any:
        return world.world.http("GET", f"/compute/v1/projects/{project}/global/images{path}")[1]

    images = ask("ubuntu-os-accelerator-images")["items"]
    assert {"tpu7x", "v6e"} == {image["family"].rpartition("-")[2] for image in images}
    assert ask("ubuntu-os-accelerator-images", f"/{images[0]['name']}") == images[0]
    assert not ask("p").get("items")


def test_unknown_places_and_methods_are_refused_in_the_form_of_compute_engine(
    practice: Any,
) -> None:
    world = ComputeWorld(practice, project="p")
    assert error_of(world.ask("GET", "/zones/us-east5-z"))[:2] == (404, "notFound")
    assert error_of(world.ask("GET", "/zones/us-east5-z/instances"))[:2] == (400, "invalid")
    assert error_of(world.ask("POST", "instances/t1/suspend"))[:2] == (400, "badRequest")
    assert error_of(world.ask("GET", "instances", maxResults="501"))[1] == "invalid"
    assert error_of(world.ask("POST", "instances", []))[1] == "badRequest"
    status, answer, _ = world.world.http("GET", "/compute/v1/projects/q/zones")
    assert error_of((status, answer))[:2] == (403, "forbidden")


def test_the_secret_or_a_token_with_a_scope_opens_it(practice: Any) -> None:
    world = ComputeWorld(practice)
    scopes = ["https://www.googleapis.com/auth/compute.readonly"]
    world.create(serviceAccounts=[{"email": "default", "scopes": scopes}])
    world.create("t2")
    account = "service-accounts/default/token"
    _, token = world.metadata("t1", account)
    assert world.metadata("t2", account)[0] == 404
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    path = f"/compute/v1/projects/p/zones/{ZONE}/instances/t1"
    assert world.world.http("GET", path, **bearer)[0] == 200
    assert world.world.http("DELETE", path, **bearer)[0] == 403
    world.emulator.http = world.emulator.http.rpartition("/")[0]
    assert world.world.http("GET", path)[0] == 401
    assert world.world.http("GET", path, **bearer)[0] == 200
    assert world.world.http("GET", path, Origin="http://evil.example", **bearer)[0] == 403


def test_the_wait_returns_at_once_while_time_stands_still(practice: Any) -> None:
    world = ComputeWorld(practice)
    name = world.create()["name"]
    assert world.ok("POST", f"operations/{name}/wait")["status"] == "RUNNING"
    world.clock.sleep(120)
    assert world.ok("POST", f"operations/{name}/wait")["status"] == "DONE"
    assert world.ask("POST", "operations/other/wait")[0] == 404


def test_the_quotas_of_compute_engine_are_those_of_regions(practice: Any) -> None:
    regions = {"us-east5": {"quota_chips": 0, "spot_quota_chips": 1536}}
    world = ComputeWorld(practice, compute={"regions": regions})
    token = {"Authorization": f"Bearer {world.world.token()}"}
    path = "/v1/projects/p/locations/global/services/compute.googleapis.com/quotaInfos"
    _, found, _ = world.world.http("GET", path, **token)
    infos = {info["quotaId"]: info for info in found["quotaInfos"]}
    family = infos["TPUS-PER-TPU-FAMILY-per-project-region"]
    assert family["dimensions"] == ["region", "tpu_family"]
    families = [item["dimensions"]["tpu_family"] for item in family["dimensionsInfos"]]
    assert families == ["CT6E", "tpu7x"]
    name = "PREEMPTIBLE-TPU-V6E-per-project-region"
    _, info, _ = world.world.http("GET", f"{path}/{name}", **token)
    assert info == infos[name]
    assert info["dimensionsInfos"][0]["details"] == {"value": "1536"}
    assert world.world.http("GET", f"{path}/other", **token)[0] == 404


def test_the_bill_has_each_use_of_chips_at_the_price_of_its_model(practice: Any) -> None:
    world = ComputeWorld(practice, instance_event("preempt", 3720, name="spot"))
    models = {"std": {}, "spot": SPOT, "flex": {**FLEX, "maxRunDuration": {"seconds": "7200"}}}
    for name, scheduling in models.items():
        world.create(name, scheduling=scheduling)
    world.clock.sleep(120 + 7200 + 30)
    bill = {charge.resource.rpartition("/")[2]: charge for charge in world.emulator.bill()}
    hours = {name: charge.seconds / 3600 for name, charge in bill.items()}
    assert hours == {"std": 7230 / 3600, "spot": 3630 / 3600, "flex": 7230 / 3600}
    for name, price in (("std", 2.70), ("spot", 1.4033), ("flex", 1.35)):
        assert bill[name].usd == pytest.approx(4 * price * hours[name], abs=0.001)
    _, told, _ = world.world.http("GET", "/emulator/bill")
    assert [charge["model"] for charge in told["charges"]] == ["spot", "flex", "on_demand"]


def test_it_resumes_with_its_instances_and_slices(practice: Any, tmp_path: Any) -> None:
    world = ComputeWorld(lambda plan: practice(plan, folder=tmp_path))
    refused: dict[str, Any] = {"metadata": {"items": [{"key": "a", "value": "1"}]}, "machine": "n2"}
    assert world.refused(**refused)[0] == 400
    world.create(scheduling=FLEX)
    world.slice()
    world.clock.sleep(300)
    before = world.ok("GET", "/aggregated/instances"), world.group()
    again = Store(tmp_path).resume()
    assert again.began == START
    assert len(again.compute.instances) == 3
    world = ComputeWorld(lambda plan: practice(plan, folder=tmp_path))
    world.clock.sleep(300)
    assert (world.ok("GET", "/aggregated/instances"), world.group()) == before


def test_an_instance_runs_commands_over_ssh_until_it_is_gone(practice: Any, tmp_path: Any) -> None:
    asyncssh = pytest.importorskip("asyncssh")
    world = ComputeWorld(lambda plan: practice(plan, machines=tmp_path))
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode().strip()
    world.create(metadata={"items": [{"key": "ssh-keys", "value": f"ana:{public}"}]})
    world.clock.sleep(120)
    shown = world.ok("GET", "instances/t1")
    address = shown["networkInterfaces"][0]["networkIP"]
    items = {item["key"]: item["value"] for item in shown["metadata"]["items"]}

    async def run(command: str) -> Any:
        options = {"username": "ana", "client_keys": [key], "known_hosts": None, "config": None}
        port = int(items["tpuctl-emulator-ssh-port"])
        async with asyncssh.connect(address, port, **options) as connection:
            return await connection.run(command)

    result = asyncio.run(run("echo $TPUCTL_METADATA_URL; ls $TPUCTL_EMULATED_DEVICES/vfio"))
    assert result.stdout.splitlines()[0].endswith(f"/vm/p/{ZONE}/t1/vm")
    assert result.stdout.split()[1:] == ["0", "1", "2", "3"]
    assert "TPU_WORKER_ID" not in asyncio.run(run("env")).stdout
    world.ok("DELETE", "instances/t1")
    world.clock.sleep(31)
    assert world.status() == "gone"
    with pytest.raises(OSError, match="onnect"):
        asyncio.run(run("true"))


@pytest.mark.slow
def test_bodies_of_any_form_are_answered_and_can_be_resumed(practice: Any, tmp_path: Any) -> None:
    world = ComputeWorld(lambda plan: practice(plan, folder=tmp_path))
    disk = {"boot": True, "initializeParams": {"diskSizeGb": "200", "sourceImage": "x/y"}}
    fields: dict[str, Any] = {
        **world.body("t1"), "disks": [disk], "labels": {"a": "b"}, "tags": {"items": ["web"]},
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
        "metadata": {"items": [{"key": "a", "value": "b"}]},
        "serviceAccounts": [{"email": "default", "scopes": ["cloud-platform"]}],
        "scheduling": {**FLEX, "terminationTime": None}, "resourcePolicies": [],
        "params": {"requestValidForDuration": {"seconds": "600"}},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION", "values": []},
    }  # fmt: skip

    def variants(value: Any) -> Iterator[Any]:
        yield from (None, 7, "x", [7], [{}], {"x": 1})
        lists = enumerate(value if isinstance(value, list) else ())
        for key, item in value.items() if isinstance(value, dict) else lists:
            for changed in variants(item):
                whole = dict(value) if isinstance(value, dict) else list(value)
                whole[key] = changed
                yield whole

    answers = Counter[int]()
    templates = "/global/instanceTemplates"
    for number, body in enumerate(variants(fields)):
        own = {**body, "name": f"t{number}"} if isinstance(body, dict) else body
        of_template = {**body, "machineType": TYPE} if isinstance(body, dict) else body
        answers[world.ask("POST", "instances", own)[0]] += 1
        asked = {"name": f"t{number}", "properties": of_template}
        answers[world.ask("POST", templates, asked)[0]] += 1
    for body in variants(world.group_body(name="t1")):
        answers[world.ask("POST", "instanceGroupManagers", body)[0]] += 1
    assert min(answers[200], answers[400]) > 50
    assert set(answers) <= {200, 400, 404, 409}
    world.clock.sleep(300)
    assert len(world.ok("GET", "instances")["items"]) > 20
    assert Store(tmp_path).resume().compute.resources
    for text in ("name eq '['", "(" * 5000, "disks.x.y=1", "labels.x.y.z=1", "a==b", "'"):
        assert world.ask("GET", "instances", filter=text)[0] in (200, 400), text
