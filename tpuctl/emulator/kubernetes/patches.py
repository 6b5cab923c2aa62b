"""Changes to an object: merge patches (RFC 7386) and JSON patches (RFC 6902)."""

from copy import deepcopy
from typing import Any

from tpuctl.emulator.kubernetes.objects import kube_error
from tpuctl.emulator.methods import Document


def merged(old: Any, change: Any) -> Any:
    """Apply a merge patch."""
    if not isinstance(change, dict):
        return change
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


def json_patched(old: Document, operations: Any) -> Document:
    """Apply a JSON patch; raises an error of the API if an operation is not possible."""
    new = deepcopy(old)
    try:
        for each in operations:
            _apply(new, each)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        why = f"the JSON patch cannot be applied: {type(error).__name__} {error}"
        raise kube_error("invalid", what=old["kind"], why=why) from None
    return new


def _apply(document: Document, operation: Document) -> None:
    verb = operation["op"]
    if verb in ("move", "copy"):
        value = _at(document, operation["from"], remove=verb == "move")
        _add(document, operation["path"], deepcopy(value))
    elif verb == "add":
        _add(document, operation["path"], operation["value"])
    elif verb == "replace":
        _at(document, operation["path"], remove=True)
        _add(document, operation["path"], operation["value"])
    elif verb == "remove":
        _at(document, operation["path"], remove=True)
    elif verb != "test" or _at(document, operation["path"]) != operation["value"]:
        raise ValueError(operation)


def _parent(document: Document, path: str) -> tuple[Any, Any]:
    """Return what contains a value, and the value's key or index there."""
    root, *names = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    if root or not names:
        raise ValueError(path)
    found: Any = document
    for name in names[:-1]:
        found = found[int(name) if isinstance(found, list) else name]
    last = names[-1]
    return found, int(last) if isinstance(found, list) and last != "-" else last


def _at(document: Document, path: str, *, remove: bool = False) -> Any:
    parent, key = _parent(document, path)
    return parent.pop(key) if remove else parent[key]


def _add(document: Document, path: str, value: Any) -> None:
    parent, key = _parent(document, path)
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else key, value)
    else:
        parent[key] = value
