"""The agent as it travels: its modules, and the one shell command that receives them.

The command is the same for every request: no word of the user ever meets a shell.
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
# Which modules an operation's module needs, each after those that it imports.
_NEEDS = {
    "run": ("wire", "process", "run", "main"),
    "jobs": ("wire", "process", "run", "joblog", "jobs", "main"),
    "probe": ("wire", "process", *_CHIPS, "chips", "run", "probe", "main"),
    "chips": ("wire", "process", *_CHIPS, "chips", "main"),
    "top": ("wire", "process", *_CHIPS, "chips", "metrics", "top", "main"),
    "copy": ("wire", "tree", "unpack", "copy", "main"),
}
_LENGTH_DIGITS = 8

_PYTHON = (
    "python3 -I -S -c "
    "'import sys,zlib;i=sys.stdin.buffer;exec(zlib.decompress(i.read(int(i.read(8)))))'"
)
COMMAND = f"exec {_PYTHON}"
"""Reads the agent from stdin and becomes it; means the same to every usual shell."""

ROOT_COMMAND = f"exec sudo -n {_PYTHON}"
"""The same for root, where sudo asks no password."""

# Runs on the worker. The modules keep their names, so that they are the same text on both sides.
_BOOT = """
import types
for name, source in SOURCES:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(MODULE, i)
"""


def opening(operation: str, **request: object) -> bytes:
    """Everything that a conversation with a worker begins with; `operation` is module.function."""
    module, _, function = operation.partition(".")
    return payload(module) + wire.note(do=function, **request)


@cache
def payload(module: str) -> bytes:
    """What is sent first: a length, and the agent with what this module of it needs."""
    names = [name if "." in name else f"{_PACKAGE}.{name}" for name in _NEEDS[module]]
    packages = {".".join(name.split(".")[:depth]) for name in names for depth in (1, 2, 3)}
    parents = [(name, "") for name in sorted(packages - set(names))]
    sources = [(name, _source(name)) for name in names]
    text = f"SOURCES = {[*parents, *sources]!r}\nMODULE = {f'{_PACKAGE}.{module}'!r}\n{_BOOT}"
    program = zlib.compress(text.encode(), 9)
    return str(len(program)).zfill(_LENGTH_DIGITS).encode() + program


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")


def shared_modules() -> tuple[str, ...]:
    """The modules beside the agent that travel with it."""
    return _CHIPS
