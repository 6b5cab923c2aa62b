"""The agent as it is sent to a worker: its modules, and the shell command that receives them.

The command is the same for every request, so that nothing a user writes is read by a shell.
"""

import zlib
from functools import cache
from importlib import resources

from tpuctl.remote.agent import wire

_PACKAGE = "tpuctl.remote.agent"
_CHIPS = (
    "tpuctl.runtime.machine",
    "tpuctl.runtime.redact",
    "tpuctl.runtime.local",
    "tpuctl.runtime.holders",
)
NEEDS = {
    "run": ("wire", "process", "run"),
    "jobs": ("wire", "process", "run", "joblog", "jobs"),
    "chips": ("wire", "process", *_CHIPS, "chips"),
    "top": ("wire", "process", *_CHIPS, "chips", "tpuctl.protobuf_wire", "metrics", "top"),
    "copy": ("wire", "tree", "unpack", "copy"),
}
"""The modules that each module with operations needs, in the order of their imports."""

# The same eight digits are read by _PYTHON.
_LENGTH_DIGITS = 8

# -I and -S: the user's environment and packages are not imported, which would cost time and trust.
_PYTHON = (
    "python3 -I -S -c "
    "'import sys,zlib;i=sys.stdin.buffer;exec(zlib.decompress(i.read(int(i.read(8)))))'"
)
COMMAND = f"exec {_PYTHON}"
"""Runs the agent that comes on stdin; works in every usual shell."""

ROOT_COMMAND = f"exec sudo -n {_PYTHON}"
"""The same as root, if sudo needs no password."""

# Runs on the worker. The modules keep their names, so that the same source works on both sides.
_BOOT = """
import types
for name, source in SOURCES:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules[{wire!r}].main({module!r}, i)
"""


def request_bytes(operation: str, **request: object) -> bytes:
    """Return the agent and a request for it; `operation` is module.function."""
    module, _, function = operation.partition(".")
    return payload(module) + wire.note(do=function, **request)


@cache
def payload(module: str) -> bytes:
    """Return the length and the compressed program for one of the agent's modules."""
    names = [name if "." in name else f"{_PACKAGE}.{name}" for name in NEEDS[module]]
    packages = {".".join(name.split(".")[:depth]) for name in names for depth in (1, 2, 3)}
    parents = [(name, "") for name in sorted(packages - set(names))]
    sources = [(name, _source(name)) for name in names]
    boot = _BOOT.format(wire=wire.__name__, module=f"{_PACKAGE}.{module}")
    text = f"SOURCES = {[*parents, *sources]!r}\n{boot}"
    program = zlib.compress(text.encode(), 9)
    return str(len(program)).zfill(_LENGTH_DIGITS).encode() + program


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")
