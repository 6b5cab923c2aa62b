"""The objects of the cluster, which are stored, versioned, watched and validated."""

import json
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from tpuctl.emulator.errors import ServiceError, load_data
from tpuctl.emulator.methods import Document

JSON = {"Content-Type": "application/json"}
_KEPT_CHANGES = 4096
_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool,
                          "integer": int, "number": (int, float)}  # fmt: skip
_OPEN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_META = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
     "finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace",
     "ownerReferences", "resourceVersion", "selfLink", "uid")  # fmt: skip
_MISSING = ("onExitCodes", "onJobFailureMessagePatterns", "targetReplicatedJobs", "valueFrom",
            "envFrom", "dependsOn", "coordinator", "volumeClaimPolicies")  # fmt: skip
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def kube_error(kind: str, **facts: object) -> ServiceError:
    """Make an error as a Kubernetes Status, from the table in kubernetes.json."""
    code, reason, text = load_data("kubernetes")["errors"][kind]
    message = text.format_map({"what": "the object", "why": "", "most": "", **facts})
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": reason, "code": code}  # fmt: skip
    error = ServiceError(message, http_status=code, http_document=document)
    error.http_headers |= JSON | ({"Retry-After": "1"} if code == 429 else {})
    return error


class Objects:
    """All objects by plural, namespace and name; `changed` wakes waiting threads."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.changed = threading.Condition(threading.RLock())
        self.revision = 1
        self._kinds: dict[str, dict[tuple[str, str], Document]] = {
            plural: {} for plural in load_data("kubernetes")["resources"]
        }
        self._changes: deque[tuple[int, str, str, Document]] = deque(maxlen=_KEPT_CHANGES)

    def time(self) -> str:
        """Return the current time in the API's format."""
        return f"{self.now():%Y-%m-%dT%H:%M:%SZ}"

    def put(self, plural: str, document: Document) -> Document:
        """Store a new object or a new version of one."""
        with self.changed:
            base, kind, namespaced, _ = load_data("kubernetes")["resources"][plural]
            document.setdefault("apiVersion", re.sub("^apis?/", "", base))
            document.setdefault("kind", kind)
            meta = document["metadata"]
            if namespaced:
                meta.setdefault("namespace", "default")
            key = (meta.get("namespace", ""), meta["name"])
            change = "MODIFIED" if key in self._kinds[plural] else "ADDED"
            self.revision += 1
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", self.time())
            meta["resourceVersion"] = str(self.revision)
            self._kinds[plural][key] = document
            self._note(change, plural, document)
            return document

    def find(self, plural: str, namespace: str, name: str) -> Document | None:
        """Return an object."""
        return self._kinds[plural].get((namespace, name))

    def all(self, plural: str, matches: Callable[[Document], bool] | None = None) -> list[Document]:
        """Return the objects of a kind that match."""
        with self.changed:
            return [each for each in self._kinds[plural].values() if not matches or matches(each)]

    def remove(self, plural: str, document: Document) -> None:
        """Remove an object."""
        with self.changed:
            meta = document["metadata"]
            if self._kinds[plural].pop((meta.get("namespace", ""), meta["name"]), None):
                self.revision += 1
                # A watch that resumes from this version must not see the deletion again.
                version = {"resourceVersion": str(self.revision)}
                self._note("DELETED", plural, {**document, "metadata": {**meta, **version}})

    def owned(self, plural: str, owner: Document) -> list[Document]:
        """Return the objects of a kind that belong to another."""
        uid = owner["metadata"]["uid"]
        owners = "ownerReferences"
        return self.all(plural, lambda each: any(
            ref["uid"] == uid for ref in each["metadata"].get(owners, ())))  # fmt: skip

    def event(self, about: Document, reason: str, message: str, *, kind: str = "Normal") -> None:
        """Record an event about an object."""
        meta, now = about["metadata"], self.time()
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        subject = {"kind": about["kind"], "apiVersion": about["apiVersion"], "uid": meta["uid"],
                   "name": meta["name"], "namespace": meta.get("namespace", "default")}  # fmt: skip
        self.put("events", {
            "metadata": {"name": name, "namespace": subject["namespace"]},
            "involvedObject": subject, "reason": reason, "message": message, "type": kind,
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
            "source": {"component": "jobset"},
        })  # fmt: skip

    def watch(
        self,
        plural: str,
        matches: Callable[[Document], bool],
        since: int,
        until: Callable[[], bool],
    ) -> Iterator[Document]:
        """Yield changes to the objects of a kind as they happen."""
        while not until():
            with self.changed:
                found = [each for each in self._changes if each[0] > since and each[2] == plural]
                if not found:
                    self.changed.wait(0.2)
                since = max(since, *(each[0] for each in found), since)
            for _, change, _, document in found:
                if matches(document):
                    yield {"type": change, "object": document}

    def _note(self, change: str, plural: str, document: Document) -> None:
        self._changes.append((self.revision, change, plural, deepcopy(document)))
        self.changed.notify_all()


def set_condition(
    status: Document, kind: str, value: str, reason: str, message: str, now: str
) -> bool:
    """Set a condition; returns False if nothing changed."""
    conditions = status.setdefault("conditions", [])
    old = next((each for each in conditions if each["type"] == kind), None)
    if old and (old["status"], old["reason"]) == (value, reason):
        return False
    new = {"type": kind, "status": value, "reason": reason, "message": message,
           "lastTransitionTime": now}  # fmt: skip
    status["conditions"] = [each for each in conditions if each["type"] != kind] + [new]
    return True


def has_condition(document: Document, kind: str) -> bool:
    """Whether a condition is true."""
    conditions = document.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def selected(labels: Document, selector: str) -> bool:
    """Whether labels match a selector such as a=b, a!=b, a, !a, a in (b,c) or a notin (b)."""
    for part in filter(None, (text.strip() for text in re.split(r",(?![^(]*\))", selector))):
        name, equals, value = part.replace("==", "=").partition("=")
        if found := _SET.fullmatch(part):
            values = [each.strip() for each in found[3].split(",")]
            met = (labels.get(found[1]) in values) == (found[2] == "in")
        elif not equals:
            met = (name.lstrip("!") in labels) != name.startswith("!")
        else:
            met = (labels.get(name.rstrip("! ")) == value.strip()) != name.endswith("!")
        if not met:
            return False
    return True


def fields_match(document: Document, selector: str) -> bool:
    """Whether the fields of an object match a selector such as status.phase=Running."""
    for part in filter(None, selector.split(",")):
        path, _, value = part.replace("==", "=").partition("=")
        found: Any = document
        for name in path.rstrip("!").split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if (str(found or "") == value) == path.endswith("!"):
            return False
    return True


def schema_problems(value: Any, schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the problems of a value with its schema, including unknown fields."""
    if "$ref" in schema:
        schema = load_data("jobset_schema")["schema"]["$defs"]["container"]
    kind = _TYPES.get(schema.get("type", ""))
    is_bool = isinstance(value, bool) and schema.get("type") != "boolean"
    if schema.get(_INT_OR_STRING):
        kind = (int, str)
    if kind and (is_bool or not isinstance(value, kind)):
        yield f"{place}: Invalid value: must be of type {schema.get('type', 'integer or string')}"
        return
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(f'"{each}"' for each in schema["enum"])
        yield f'{place}: Unsupported value: "{value}": supported values: {known}'
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{place}: Invalid value: {value}: should be at least {schema['minimum']}"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{place}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
        for number, item in enumerate(value):
            yield from schema_problems(item, schema.get("items", {}), f"{place}[{number}]")
    if isinstance(value, dict):
        yield from _object_problems(value, schema, place)


def _object_problems(value: Document, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    if place == "metadata":
        known, more = {key: {} for key in _META}, None
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place}.{name}: Required value".lstrip(".")
    for name, each in value.items():
        below = f"{place}.{name}".lstrip(".")
        if name in known or isinstance(more, dict):
            yield from schema_problems(each, known.get(name, more), below)
        elif known and not schema.get(_OPEN):
            yield f'unknown field "{below}"'


def webhook_problems(made: Document) -> Iterator[str]:
    """Yield what JobSet's webhook rejects although the schema allows it."""
    name, spec = made["metadata"]["name"], made["spec"]
    jobs = spec.get("replicatedJobs", [])
    for each in jobs:
        job, replicas = each["template"]["spec"], each.get("replicas", 1)
        pods, where = job.get("parallelism", 1), f"spec.replicatedJobs[{jobs.index(each)}]"
        if pods * replicas > 2**31 - 1:
            yield f"the product of replicas and parallelism must not exceed {2**31 - 1}"
        longest = f"{name}-{each['name']}-{replicas - 1}"
        if not _LABEL.fullmatch(longest) or len(longest) > 63:
            yield f'{where}.name: Invalid value: "{longest}": must be a DNS-1035 label'
        if len(f"{longest}-{job.get('completions', 1) - 1}-abcde") > 63:
            yield f'{where}.name: Invalid value: "{longest}": JobSet name is too long, pod names ' \
                  "generated for this JobSet will exceed 63 characters"  # fmt: skip
        pod = job["template"].get("spec", {})
        if job.get("podFailurePolicy") and pod.get("restartPolicy") != "Never":
            yield f"{where}.template.spec.podFailurePolicy: only valid with restartPolicy Never"
    rules = spec.get("failurePolicy", {}).get("rules", [])
    names = [rule.get("name", f"failurePolicyRule{n}") for n, rule in enumerate(rules)]
    if len(set(names)) < len(names):
        yield f"rule names are not unique: {', '.join(names)}"
    yield from (f"invalid failure policy rule name '{each}'" for each in names
                if not _RULE.fullmatch(each) or len(each) > 128)  # fmt: skip
    # Features of the real API that would be silently ignored here are rejected instead.
    text = json.dumps(spec)
    yield from (f"the emulator does not support {each}"
                for each in _MISSING if f'"{each}":' in text)  # fmt: skip
