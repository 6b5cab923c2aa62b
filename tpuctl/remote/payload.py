"""The agent as it travels: its modules, and the one shell command that receives them.

The command is the same for every request: no word of the user ever meets a shell.
"""

import zlib
from functools import cache
from importlib import resources

from tpuctl.remote.agent import wire

_PACKAGE = "tpuctl.remote.agent"
# Which modules an operation's module needs, each after those that it imports.
_NEEDS = {
    "run": ("wire", "process", "run", "main"),
    "jobs": ("wire", "process", "run", "jobs", "main"),
    "probe": ("wire", "process", "run", "probe", "main"),
    "copy": ("wire", "tree", "unpack", "copy", "main"),
}
_LENGTH_DIGITS = 8

COMMAND = (
    "exec python3 -I -S -c "
    "'import sys,zlib;i=sys.stdin.buffer;exec(zlib.decompress(i.read(int(i.read(8)))))'"
)
"""Reads the agent from stdin and becomes it; means the same to every usual shell."""

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
    folder = resources.files(_PACKAGE)
    parents = [("tpuctl", ""), ("tpuctl.remote", ""), (_PACKAGE, "")]
    sources = [
        (f"{_PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in _NEEDS[module]
    ]
    text = f"SOURCES = {[*parents, *sources]!r}\nMODULE = {f'{_PACKAGE}.{module}'!r}\n{_BOOT}"
    program = zlib.compress(text.encode(), 9)
    return str(len(program)).zfill(_LENGTH_DIGITS).encode() + program
