"""Which planned fault is due: the counting of calls and of nodes."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tpuctl.emulator.methods import Call
from tpuctl.emulator.records import Key
from tpuctl.emulator.scenario import CallFault, NodeEvent, Scenario


class Faults:
    """The faults of a scenario, and how often each was matched."""

    def __init__(self, scenario: Scenario) -> None:
        self._plans = scenario.faults
        self.counts = [0] * len(self._plans)

    def of_call(self, call: Call) -> CallFault | None:
        """Count a call, and give the first fault that is due; every match counts as one."""
        due = [
            plan
            for index, plan in enumerate(self._plans)
            if isinstance(plan, CallFault)
            and plan.on == call.method
            and _matches(plan, call.zone, call.name)
            and self._is_due(index, plan)
        ]
        return due[0] if due else None

    def unreachable(self, call: Call, zones: Iterable[str]) -> set[str]:
        """Count a call for all zones against the faults of single zones; name the zones that fail.

        A fault for all zones ("*") is one of the call itself.
        """
        lost: set[str] = set()
        for index, plan in enumerate(self._plans):
            if isinstance(plan, CallFault) and plan.on == call.method and plan.zone not in "*-":
                hit = {zone for zone in zones if _matches(plan, zone, call.name)}
                if hit and self._is_due(index, plan):
                    lost |= hit
        return lost

    def of_node(self, key: Key) -> list[NodeEvent]:
        """Count a new incarnation of a node, and give what will happen to it."""
        return [
            plan
            for index, plan in enumerate(self._plans)
            if isinstance(plan, NodeEvent)
            and _matches(plan, key.zone, key.name)
            and self._is_due(index, plan)
        ]

    def _is_due(self, index: int, plan: CallFault | NodeEvent) -> bool:
        self.counts[index] += 1
        count = self.counts[index]
        return count % plan.nth == 0 if plan.every else count == plan.nth


def _matches(plan: CallFault | NodeEvent, zone: str, name: str) -> bool:
    return fnmatchcase(zone, plan.zone) and fnmatchcase(name, plan.name)
