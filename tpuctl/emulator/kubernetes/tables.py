"""Lists as tables, which kubectl prints; columns as those of Kubernetes and of JobSet."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tpuctl.emulator.http import Request
from tpuctl.emulator.kubernetes.objects import has_condition
from tpuctl.emulator.methods import Document

_META_V1 = {"apiVersion": "meta.k8s.io/v1"}
_WIDE = ("IP", "Node")
_AFTER_AGE = (*_WIDE, "Version")
_DAY_S = 86400


def wants_table(request: Request) -> bool:
    """Whether a request asks for a table."""
    return "as=Table" in request.headers.get("Accept", "")


def table(
    plural: str, items: Sequence[Document], meta: Document, now: datetime, include: str
) -> Document:
    """Return objects as a table; `include` is what each row has: Object, Metadata or None."""
    empty: Document = {"metadata": {}}
    return {
        **_META_V1,
        "kind": "Table",
        "metadata": meta,
        "columnDefinitions": [
            {"name": name, "type": "string", "format": "name" if name == "Name" else "",
             "description": name, "priority": int(name in _WIDE)}
            for name in _cells(plural, empty, now)
        ],
        "rows": [
            {"cells": list(_cells(plural, each, now).values()), "object": _included(each, include)}
            for each in items
        ],
    }  # fmt: skip


def _included(each: Document, include: str) -> Document | None:
    if include == "None":
        return None
    partial = {**_META_V1, "kind": "PartialObjectMetadata", "metadata": each["metadata"]}
    return each if include == "Object" else partial


def _cells(plural: str, each: Document, now: datetime) -> Document:
    age = _since(each["metadata"].get("creationTimestamp"), now)
    if plural == "events":
        about = each.get("involvedObject", {})
        return {
            "Last Seen": _since(each.get("lastTimestamp"), now),
            "Type": each.get("type", ""),
            "Reason": each.get("reason", ""),
            "Object": f"{about.get('kind', '').lower()}/{about.get('name', '')}",
            "Message": each.get("message", ""),
        }
    middle = _MIDDLE[plural](each) if plural in _MIDDLE else {}
    last = {name: middle.pop(name) for name in _AFTER_AGE if name in middle}
    return {"Name": each["metadata"].get("name", ""), **middle, "Age": age, **last}


def _pod(each: Document) -> Document:
    spec, status = each.get("spec", {}), each.get("status", {})
    states = status.get("containerStatuses", [])
    reason = status.get("phase", "")
    for state in (state["state"] for state in states):
        for kind in ("waiting", "terminated"):
            reason = state.get(kind, {}).get("reason", reason)
    ready = sum(state["ready"] for state in states)
    return {
        "Ready": f"{ready}/{len(spec.get('containers', ()))}",
        "Status": reason,
        "Restarts": "0",
        "IP": status.get("podIP") or "<none>",
        "Node": spec.get("nodeName") or "<none>",
    }


def _job(each: Document) -> Document:
    spec, status = each.get("spec", {}), each.get("status", {})
    ended = next((kind for kind in ("Complete", "Failed") if has_condition(each, kind)), "")
    state = ended or ("Suspended" if spec.get("suspend") else "Running")
    total = spec.get("completions", 1)
    return {"Status": state, "Completions": f"{status.get('succeeded', 0)}/{total}"}


def _job_set(each: Document) -> Document:
    status = each.get("status", {})
    return {
        "TerminalState": status.get("terminalState", ""),
        "Restarts": str(status.get("restarts", "")),
        "Completed": "True" if has_condition(each, "Completed") else "",
        "Suspended": str(each.get("spec", {}).get("suspend", "")).lower(),
    }


def _node(each: Document) -> Document:
    version = each.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
    ready = "Ready" if has_condition(each, "Ready") else "NotReady"
    return {"Status": ready, "Roles": "<none>", "Version": version}


def _workload(each: Document) -> Document:
    admitted = str(has_condition(each, "Admitted"))
    return {"Queue": each.get("spec", {}).get("queueName", ""), "Admitted": admitted}


_MIDDLE: dict[str, Any] = {
    "pods": _pod, "jobs": _job, "jobsets": _job_set, "nodes": _node, "workloads": _workload,
    "namespaces": lambda each: {"Status": each.get("status", {}).get("phase", "Active")},
    "localqueues": lambda each: {"ClusterQueue": each.get("spec", {}).get("clusterQueue", "")},
}  # fmt: skip


def _since(time: str | None, now: datetime) -> str:
    """Write how long ago a time was, as kubectl does: 45s, 3m20s, 25m, 5h10m, 3d."""
    if not time:
        return "<unknown>"
    seconds = max(
        0, int((now - datetime.fromisoformat(time.replace("Z", "+00:00"))).total_seconds())
    )
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m" + (f"{seconds % 60}s" if seconds % 60 else "")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    return f"{hours}h" if hours < 48 else f"{seconds // _DAY_S}d"
