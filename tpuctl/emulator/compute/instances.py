"""Instances: what requests do to them, and what planned events do to them.

PENDING -> PROVISIONING -> STAGING -> RUNNING      only flex-start waits in PENDING
any -> STOPPING -> gone, or TERMINATED             deleted, expired, preempted
RUNNING -> REPAIRING -> RUNNING                    a host error, with automatic restart
"""

import base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from tpuctl.emulator import operations as ends
from tpuctl.emulator.compute import operations
from tpuctl.emulator.compute.capacity import refuse_capacity
from tpuctl.emulator.compute.resources import (
    ComputeOperation,
    Group,
    Instance,
    MachineType,
    path_of,
)
from tpuctl.emulator.compute.validate import (
    check_name,
    read_items,
    read_machine,
    read_properties,
    read_scheduling,
    read_time,
    read_wait,
    seconds,
)
from tpuctl.emulator.errors import ServiceError, compute_error, project_number
from tpuctl.emulator.faults import NodeEvent, fault_matches
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.nodes import (
    STOCKOUT_S,
    STOP_S,
    UPDATE_S,
    do_nothing,
    make_addresses,
    worker_busy,
)
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World
from tpuctl.hardware.types import all_types

# The fraction of the time to RUNNING that an instance is PROVISIONING, before STAGING.
_PROVISIONING = 0.25
_ON_THE_WAY = ("PROVISIONING", "STAGING", "REPAIRING")
_MAINTENANCE_NOTICE_S = 60.0
_REPAIR_S = 120.0
_EXPIRED = "deferredDelete", "deferredStop"


def insert(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Accept an instance; its operation fails if there is no capacity."""
    requested: Document = call.body["resource"]
    key = Key(call.project, call.zone, check_name(requested.get("name")))
    machine = read_machine(
        world, world.scenario.compute_zones[call.zone], requested.get("machineType")
    )
    if requested.get("resourcePolicies"):
        raise compute_error("workload_policy_on_instance")
    document, model = read_properties(machine, requested)
    wait_s = read_wait(document) if model == "flex" else 0.0
    if key in world.compute.instances:
        raise compute_error("already_exists", resource=path_of("instances", key))
    refuse_use(world, key, machine, document)
    instance = make(world, key, machine, document, model)
    world.compute.instances[key] = instance
    operation = operations.begin(world, "insert", instance)
    failure = failure or _try(world, instance)
    if failure and wait_s and failure.after_s == STOCKOUT_S:
        instance.state = "PENDING"
        world.after(wait_s, _lapse, instance, operation)
    elif failure:
        world.after(failure.after_s, ends.end, operation, instance, remove, failure.error)
    return operation


def _try(world: World, instance: Instance) -> Failure | None:
    error = try_to_grant(world, [instance])
    return Failure(STOCKOUT_S, error) if error else None


def refuse_use(world: World, key: Key, machine: MachineType, document: Document) -> None:
    """Raise ComputeError if the project may not use the machine type or address."""
    plan = world.scenario.compute
    if plan.refuses(machine.name):
        raise compute_error("allowlist", machine_type=machine.name)
    networks = document.get("networkInterfaces") or [{}]
    if not plan.external_ip and any(network.get("accessConfigs") for network in networks):
        path = path_of("instances", key)
        raise compute_error("external_ip", project=key.project, resource=path)


def make(
    world: World,
    key: Key,
    machine: MachineType,
    document: Document,
    model: str,
    group: Group | None = None,
    index: int = 0,
) -> Instance:
    """Create an instance that is not visible yet and has no chips."""
    hbm = {family.generation: family.hbm_gib_per_chip for family in all_types().families}
    hosts = group.hosts if group and group.hosts else 1
    return Instance(
        key=key,
        id=operations.new_id(world),
        created=world.now,
        document=document,
        chips=machine.chips,
        chips_per_worker=machine.chips,
        hbm_gib_per_chip=hbm[machine.generation],
        accelerator_type=machine.accelerator_type(machine.chips * hosts),
        model=model,
        state="PROVISIONING",
        machine=machine,
        group=group,
        index=index,
    )


def try_to_grant(world: World, wanted: Sequence[Instance]) -> ServiceError | None:
    """Give instances their chips if there are enough for all, otherwise return the reason."""
    known = world.compute.instances
    for instance in wanted:
        if known.get(instance.key, instance) is not instance:
            return compute_error("already_exists", resource=instance.path)
    if error := refuse_capacity(world, wanted):
        return error
    for instance in wanted:
        world.compute.instances[instance.key] = instance
        if instance.operation is None:
            agent = f"{project_number(instance.key.project)}@cloudservices.gserviceaccount.com"
            operations.begin(world, "insert", instance, user=agent)
        _grant(world, instance)
    return None


def _grant(world: World, instance: Instance) -> None:
    """Give an instance its chips, start to create it, and schedule its events."""
    takes_s, (_, zone, name) = world.scenario.provision_s, instance.key
    world.allocate_chips(instance)
    instance.state = "PROVISIONING"
    world.after(takes_s * _PROVISIONING, _stage, instance)
    world.after(takes_s, run, instance, instance.operation)
    plans = world.node_events
    for event in plans.due(lambda plan: plan.on == "instance" and fault_matches(plan, zone, name)):
        world.after(event.at_s, apply_event, instance, event)


def is_alive(world: World, instance: Instance) -> bool:
    """Whether an instance still exists and was not replaced."""
    return world.compute.instances.get(instance.key) is instance


def _stage(world: World, instance: Instance) -> None:
    if is_alive(world, instance) and instance.state == "PROVISIONING":
        instance.state = "STAGING"


def run(world: World, instance: Instance, operation: ComputeOperation | None) -> None:
    """Make an instance RUNNING, with addresses, and finish the operation that started it."""
    if not is_alive(world, instance) or instance.state not in _ON_THE_WAY:
        return
    if not instance.addresses:
        networks = instance.document.get("networkInterfaces") or [{}]
        is_open = bool(networks[0].get("accessConfigs"))
        instance.addresses = tuple(make_addresses(world, 1, is_open=is_open))
    instance.state, instance.started = "RUNNING", world.now
    instance.status_message, instance.was_preempted = "", False
    instance.billed_from = instance.billed_from or world.now
    _set_end(world, instance)
    for event in instance.pending_events:
        world.after(0, apply_event, instance, event)
    instance.pending_events.clear()
    world.compute.changed = True
    if operation:
        ends.end(world, operation, instance, do_nothing, None)


def _set_end(world: World, instance: Instance) -> None:
    """Schedule the time at which the service ends an instance."""
    scheduling, instance.expires = instance.scheduling, None
    lasts = seconds(scheduling.get("maxRunDuration"))
    if lasts is not None:
        instance.expires = (instance.started or world.now) + timedelta(seconds=lasts)
    elif moment := scheduling.get("terminationTime"):
        instance.expires = read_time(moment)
    if instance.expires:
        after_s = max(0.0, (instance.expires - world.now).total_seconds())
        world.after(after_s, _expire, instance, instance.expires)


def _expire(world: World, instance: Instance, planned: datetime) -> None:
    if is_alive(world, instance) and instance.expires == planned and instance.state == "RUNNING":
        end_by_system(world, instance, *_EXPIRED)


def end_by_system(world: World, instance: Instance, deletes: str, stops: str) -> None:
    """Stop or delete an instance, according to its termination action, and record that."""
    is_deleted = instance.scheduling.get("instanceTerminationAction") == "DELETE"
    verb = f"compute.instances.{deletes if is_deleted else stops}"
    operations.record(world, verb, instance)
    instance.status_message = f"Instance was ended by the system: {verb}"
    begin_stop(world, instance)
    world.after(world.scenario.delete_s, remove if is_deleted else make_stopped, instance)


def begin_stop(world: World, instance: Instance) -> None:
    """Put an instance in the state STOPPING, and fail its running operation."""
    error = compute_error("cancelled", resource=instance.path)
    ends.abort(world, instance, error)
    instance.previous_state, instance.state = instance.state, "STOPPING"


def make_stopped(world: World, instance: Instance) -> None:
    """Make a stopping instance TERMINATED, which releases its chips."""
    if is_alive(world, instance) and instance.state == "STOPPING":
        instance.state, instance.stopped, instance.expires = "TERMINATED", world.now, None
        world.release_chips(instance)
        world.compute.changed = True


def remove(world: World, instance: Instance) -> None:
    """Remove an instance, which frees its name, chips and quota."""
    if is_alive(world, instance):
        del world.compute.instances[instance.key]
        world.release_chips(instance)
        world.compute.changed = True


def _lapse(world: World, instance: Instance, operation: ComputeOperation) -> None:
    """Delete an instance that got no capacity in time."""
    if is_alive(world, instance) and instance.state == "PENDING":
        error = refuse_capacity(world, [instance]) or compute_error("disguised_stockout")
        ends.end(world, operation, instance, remove, error)


def delete(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to delete an instance, which can take a long time while it is PENDING."""
    instance, plan = find(world, call), world.scenario
    if instance.state == "STOPPING" and instance.operation and not instance.operation.ended:
        raise compute_error("busy", resource=instance.path)
    slow = plan.compute.pending_delete_s if instance.state == "PENDING" else None
    takes_s = plan.delete_s if slow is None else slow
    begin_stop(world, instance)
    return operations.start(
        world, "delete", instance, failure, takes_s=takes_s, then=remove, undo=_restore
    )


def _restore(world: World, instance: Instance) -> None:
    if is_alive(world, instance) and instance.state == "STOPPING":
        instance.state = instance.previous_state
        if instance.state in _ON_THE_WAY:
            world.after(world.scenario.provision_s, run, instance, None)


def stop(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to stop a running instance."""
    instance = find(world, call, "RUNNING")
    begin_stop(world, instance)
    return operations.start(
        world, "stop", instance, failure, takes_s=STOP_S, then=make_stopped, undo=_restore
    )


def start(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Restart an instance; the operation fails if its capacity is gone."""
    instance = find(world, call, "TERMINATED")
    operation = operations.begin(world, "start", instance)
    if failure := failure or _try(world, instance):
        world.after(failure.after_s, ends.end, operation, instance, do_nothing, failure.error)
    return operation


def update(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to change the scheduling, the metadata or the labels of an instance."""
    what = call.method.rpartition("_")[2]
    instance = find(world, call)
    requested: Document = call.body["resource"]
    if what == "scheduling":
        if instance.state not in ("RUNNING", "TERMINATED"):
            raise compute_error("busy", resource=instance.path)
        value, _ = read_scheduling({**instance.scheduling, **requested})
    else:
        key = "fingerprint" if what == "metadata" else "labelFingerprint"
        if requested.get(key) != fingerprint(instance):
            raise compute_error("fingerprint")
        value = read_items(requested) if what == "metadata" else requested.get("labels", {})

    def change(world: World, instance: Instance) -> None:
        instance.document[what] = value
        instance.fingerprints += 1
        if what == "scheduling" and instance.state == "RUNNING":
            _set_end(world, instance)

    verb = f"set{what.capitalize()}"
    return operations.start(
        world, verb, instance, failure, takes_s=UPDATE_S, then=change, undo=do_nothing
    )


def fingerprint(instance: Instance) -> str:
    """Return the fingerprint that a client must send with a change."""
    number = (instance.id + instance.fingerprints) % 2**64
    return base64.urlsafe_b64encode(number.to_bytes(8, "big")).decode()


def simulate_maintenance(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start maintenance, which preempts a spot instance."""
    instance = find(world, call, "RUNNING")
    event = NodeEvent("*", "*", "preempt" if instance.spot else "maintenance", 0, 1, False, 0, 0)

    def begin(world: World, instance: Instance) -> None:
        # Later, because now it would abort this operation.
        world.after(0, apply_event, instance, event)

    verb = "compute.instances.simulateMaintenanceEvent"
    return operations.start(
        world, verb, instance, failure, takes_s=UPDATE_S, then=begin, undo=do_nothing
    )


def find(world: World, call: Call, *states: str) -> Instance:
    """Return the instance of a call; raises ComputeError, also if its state is not allowed."""
    key = Key.of(call)
    instance = world.compute.instances.get(key)
    if instance is None:
        raise compute_error("not_found", resource=path_of("instances", key))
    if states and instance.state not in states:
        raise compute_error("busy", resource=instance.path)
    world.changes += bool(states)
    return instance


def apply_event(world: World, instance: Instance, event: NodeEvent) -> None:
    """Apply a planned event to an instance, unless that is stopped or stopping."""
    if not is_alive(world, instance) or instance.state in ("STOPPING", "TERMINATED"):
        return
    if event.event not in ("preempt", "vanish") and instance.state != "RUNNING":
        instance.pending_events.append(event)
    else:
        _EVENTS[event.event](world, instance, event)


def _preempt(world: World, instance: Instance, _: NodeEvent) -> None:
    if instance.state == "RUNNING":
        instance.was_preempted = True
        end_by_system(world, instance, "preempted", "preempted")
        return
    operations.record(world, "compute.instances.preempted", instance)
    ends.abort(world, instance, compute_error("preempted", resource=instance.path))
    remove(world, instance)


def _maintain(world: World, instance: Instance, _: NodeEvent) -> None:
    instance.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
    world.after(_MAINTENANCE_NOTICE_S, _terminate, instance, "terminateOnHostMaintenance")


def _terminate(world: World, instance: Instance, verb: str) -> None:
    """Lose the host of an instance, which is restarted elsewhere if it requested that."""
    if not is_alive(world, instance) or instance.state != "RUNNING":
        return
    instance.maintenance = "NONE"
    operations.record(world, f"compute.instances.{verb}", instance)
    if instance.scheduling.get("automaticRestart"):
        instance.state = "REPAIRING"
        operations.record(world, "compute.instances.automaticRestart", instance)
        world.after(_REPAIR_S, run, instance, None)
    else:
        instance.state = "STOPPING"
        make_stopped(world, instance)


_EVENTS: dict[str, Callable[[World, Instance, NodeEvent], None]] = {
    "preempt": _preempt,
    "vanish": lambda world, instance, _: remove(world, instance),
    "maintenance": _maintain,
    "host_error": lambda world, instance, _: _terminate(world, instance, "hostError"),
    "expire": lambda world, instance, _: end_by_system(world, instance, *_EXPIRED),
    "worker_down": lambda _world, instance, _: instance.down_workers.add(0),
    "worker_busy": worker_busy,
}
