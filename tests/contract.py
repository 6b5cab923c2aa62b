"""What scripts rely on: exact JSON Schemas of every command's document, and CONTRACT.md's keys.

The schemas are made from the result dataclasses: the public function of a command says in its
annotation which results it has. CONTRACT's keys are the least that a schema must have. In a shape,
None ends a branch; a key in brackets is a list whose elements have the shape below it.
"""

import ast
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import PurePath
from typing import Any, Literal, Union

import jsonschema

import tpuctl
from tpuctl.datasets.serve import Service
from tpuctl.outcome import Status
from tpuctl.remote.jobs import ShownTpu as ShownTpu  # a result of `show`, known once imported

Shape = dict[str, Any]


def keys(names: str) -> Shape:
    return dict.fromkeys(names.split())


CONFIG: Shape = {"[settings]": keys("name value source meaning"), **keys("files")}
DOCTOR: Shape = {
    **keys(
        "runtime accelerator generation chips cores devices hosts usable worker container evidence"
        " packages strategy_tf strategy_jax strategy_torch"
    ),
    "host": keys("vcpus memory_bytes disk_free_bytes python"),
    "recommended": keys("framework strategy snippet"),
    "[holders]": keys("pid user command device is_this_notebook"),
    "[problems]": keys("code severity summary evidence fix fix_command"),
}
PROFILE: Shape = {
    **keys(
        "kind batch_size steps pipeline_examples_per_s device_examples_per_s input_wait_fraction"
        " device_idle_fraction mxu_idle_fraction mxu_utilization verdict confidence"
        " overhead_fraction evidence"
    ),
    "window": keys("start_s end_s"),
    "?step_ms": keys("mean p50 p95"),
    "[stages]": keys(
        "index name op location examples_per_s_alone cpu_ms_per_example share_of_cpu parallelism"
        " method is_bottleneck"
    ),
    "vcpus": keys("available used needed_to_saturate low high why_null"),
    "[advice]": keys(
        "code what predicted_examples_per_s measured_examples_per_s predicted_mxu_idle_fraction"
        " error_fraction change"
    ),
}
PRESIZE: Shape = {
    **keys(
        "plan_id images written skipped salvaged shards bytes_in bytes_out images_per_s seconds"
        " resumed manifest"
    ),
    "[quarantined]": keys("path reason"),
}
TPU: Shape = {
    **keys(
        "name zone accelerator_type generation chips state health spot queued_resource"
        " runtime_version created expires labels usd_per_hour usd_so_far emulated id provider"
        " provisioning units_per_hour units_left hours_left reachable"
    ),
    "[workers]": keys("index internal_ip external_ip state"),
}
CREATED: Shape = {**TPU, "[attempts]": keys("zone outcome reason seconds")}
TPU_LIST: Shape = {
    "[tpus]": TPU,
    "[queued_resources]": keys("name zone state accelerator_type nodes created usd_per_hour"),
    "unreachable_zones": None,
}
OFFERS: Shape = {
    "[offers]": keys(
        "provider accelerator_type chips zone provisioning usd_per_hour units_per_hour quota_left"
        " limit_hours available evidence"
    )
}
LEFTOVERS: Shape = {
    "[found]": keys("kind name zone reason usd_per_hour chips action"),
    **keys("freed_chips saved_usd_per_hour"),
}
WATCHED: Shape = {
    "[attempts]": keys("number cause reason zone tpu_id job began ended exit_code worker"),
    **keys("name zone job crashes usd_per_hour tail"),
}
TOP: Shape = {
    "[workers]": {
        **keys("index vcpu_percent memory_used_bytes"),
        "[chips]": keys("index duty_cycle_percent hbm_used_bytes holder_pid why_null"),
    }
}
FIT: Shape = {
    **keys(
        "accelerator_type batch_size per_chip_batch fits hbm_needed_bytes hbm_available_bytes"
        " flops_per_step hbm_bytes_per_step compute_ms memory_ms bound mxu_padding_waste_fraction"
        " compile_seconds max_batch warnings"
    ),
    "step_ms_estimate": keys("low high"),
    "compiler": keys("libtpu jaxlib"),
}
BENCH: Shape = {
    "[rows]": keys(
        "device framework strategy batch_size first_epoch_s epoch_s step_ms us_per_example"
        " examples_per_s"
    )
}
LINT: Shape = {
    "[findings]": keys("path cell line column code severity message why fix fixable"),
    **keys("files fixed"),
}
PLAN = keys("script argv env unset framework strategy devices workers because")
# Returned by a callback: the function ends with an exception.
RESULTS_ELSEWHERE: dict[str, tuple[type, ...]] = {"data serve": (Service,)}
LEAST: dict[str, Shape] = {
    "config": CONFIG,
    "doctor": DOCTOR,
    "profile run": PROFILE,
    "profile show": PROFILE,
    "profile trace": PROFILE,
    "data presize": PRESIZE,
    "show": TPU,
    "create": CREATED,
    "list": TPU_LIST,
    "offers": OFFERS,
    "gc": LEFTOVERS,
    "watch": WATCHED,
    "top": TOP,
    "fit": FIT,
    "bench": BENCH,
    "launch": PLAN,
    "lint": LINT,
}
_DATE = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"
_SCALARS: dict[Any, dict[str, Any]] = {
    Any: {},
    object: {},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "pattern": _DATE},
}


def function_of(command: str) -> Callable[..., Any]:
    """The Python twin of a command: `profile run` is `tpuctl.profile.run`."""
    if command == "demo":
        return typing.cast(Callable[..., Any], tpuctl.demo.run)
    found: Any = tpuctl
    for word in command.split():
        found = getattr(found, word)
    return found if inspect.isroutine(found) else type(found).__call__


def results_of(command: str) -> tuple[type, ...]:
    """The dataclasses that a command's function may return, subclasses included."""
    if command in RESULTS_ELSEWHERE:
        return RESULTS_ELSEWHERE[command]
    functions = [function_of(command)] + [tpuctl.jobs] * (command == "logs")
    kinds = [option for each in functions for option in _options(_hints(each)["return"])]
    return tuple(dict.fromkeys(below for kind in kinds for below in _with_subclasses(kind)))


def _options(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (Union, types.UnionType)
    options = typing.get_args(kind) if is_union else (kind,)
    return tuple(option for option in options if option is not types.NoneType)


def _with_subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(below for child in children for below in _with_subclasses(child))]


@cache
def _hints(thing: Any) -> dict[str, Any]:
    """Type hints, also where their names are imported under TYPE_CHECKING only."""
    try:
        return typing.get_type_hints(thing)
    except NameError:
        module = sys.modules[thing.__module__]
        names = dict(vars(module))
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                exec(compile(ast.Module(node.body, []), str(module.__file__), "exec"), names)
        return typing.get_type_hints(thing, names)


def schema_of(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The exact schema of a type; dataclasses are put into `defs`, for they may nest."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(options)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option, defs) for option in options]}
    if dataclasses.is_dataclass(kind):
        return _dataclass_schema(kind, defs)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string"}
    if origin is tuple and options[1:] != (...,):
        items = [schema_of(option, defs) for option in options]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {"type": "object", "additionalProperties": schema_of(options[1], defs)}
    if isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)):
        return {"type": "array", "items": schema_of(options[0], defs)}
    raise TypeError(f"no schema for {kind}")


def _dataclass_schema(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in defs:
        defs[name] = {}
        hints = _class_hints(kind)
        shown = [f.name for f in dataclasses.fields(kind) if not f.metadata.get("internal")]
        defs[name] = {
            "type": "object",
            "properties": {field: schema_of(hints[field], defs) for field in shown},
            "required": shown,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _class_hints(kind: type) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__annotations__" in vars(base):
            hints |= _hints(base)
    return hints


@cache
def document_schema(command: str) -> dict[str, Any]:
    """The schema of the document of a command that has a result."""
    defs: dict[str, Any] = {}
    error = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "not": {"const": "bug"}},
            "message": {"type": "string", "minLength": 1},
            "hint": {"type": ["string", "null"]},
        },
        "required": ["code", "message", "hint"],
        "additionalProperties": False,
    }
    properties = {
        "schema": {"const": "tpuctl/1"},
        "command": {"const": command},
        "status": {"enum": list(typing.get_args(Status))},
        "data": {"anyOf": [schema_of(kind, defs) for kind in results_of(command)]},
        "errors": {"type": "array", "items": error},
        "warnings": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": defs,
    }


def problems(document: dict[str, Any], command: str, least: Shape | None = None) -> list[str]:
    """Name what is wrong with the document of a command that had a result."""
    validator = jsonschema.Draft202012Validator(document_schema(command))
    found = [_said(error) for error in validator.iter_errors(document)]
    return found or missing(document["data"], least or {})


def failure_problems(document: dict[str, Any], command: str, code: str) -> list[str]:
    """Name what is wrong with the document of a command that failed before it had a result."""
    schema = document_schema(command)
    failed = {"data": {"const": {}}, "status": {"const": "error"}}
    properties = {**schema["properties"], **failed}
    properties["errors"] = {**properties["errors"], "minItems": 1, "maxItems": 1}
    validator = jsonschema.Draft202012Validator({**schema, "properties": properties})
    found = [_said(error) for error in validator.iter_errors(document)]
    return found or [each["code"] for each in document["errors"] if each["code"] != code]


def _said(error: Any) -> str:
    deepest = jsonschema.exceptions.best_match([error])
    return f"{'.'.join(map(str, deepest.absolute_path))}: {deepest.message}"


def keys_missing(command: str) -> list[str]:
    """CONTRACT's keys of a command that no result of it has."""
    schema = document_schema(command)
    lacks = [
        _missing_in(option, LEAST[command], schema["$defs"])
        for option in schema["properties"]["data"]["anyOf"]
    ]
    return min(lacks, key=len)


def _missing_in(schema: dict[str, Any], shape: Shape, defs: dict[str, Any]) -> list[str]:
    options = [_resolve(option, defs) for option in schema.get("anyOf", [schema])]
    properties = {k: v for option in options for k, v in option.get("properties", {}).items()}
    found = []
    for key, below in shape.items():
        name = key.strip("[]?")
        if name not in properties:
            found.append(name)
        elif below is not None:
            inner = _resolve(properties[name], defs)
            inner = inner.get("items", {}) if key.startswith("[") else inner
            found += [f"{name}.{each}" for each in _missing_in(inner, below, defs)]
    return found


def _resolve(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return typing.cast(dict[str, Any], defs[name] if name else schema)


def missing(data: Any, shape: Shape, where: str = "data") -> list[str]:
    """Name every key of the shape that the data lacks."""
    found = []
    for key, below in shape.items():
        name, is_list, optional = key.strip("[]?"), key.startswith("["), key.startswith("?")
        here = f"{where}.{name}"
        if not isinstance(data, dict) or name not in data:
            found.append(here)
        elif below is None or (optional and data[name] is None):
            continue
        elif is_list:
            for index, item in enumerate(data[name]):
                found += missing(item, below, f"{here}[{index}]")
        else:
            found += missing(data[name], below, here)
    return found


def other_keys(ours: Any, theirs: Any, where: str = "data") -> list[str]:
    """Where two measurements have other keys; lists may be empty, and values null, in one."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        odd = [f"{where}.{key}" for key in ours.keys() ^ theirs.keys()]
        both = ours.keys() & theirs.keys()
        return odd + [
            each for key in both for each in other_keys(ours[key], theirs[key], f"{where}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip(ours, theirs, strict=False)
        return [each for pair in pairs for each in other_keys(*pair, f"{where}[]")]
    return []
