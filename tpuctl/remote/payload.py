"""The agent as it travels: its modules, and the one shell command that receives them.

The command is the same for every request: no word of the user ever meets a shell.
"""

import zlib
from functools import cache
from importlib import resources

from tpuctl.remote.agent import wire

_PACKAGE = "tpuctl.remote.agent"
# Each module after those that it imports.
_MODULES = ("wire", "process", "run", "jobs", "main")
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
module.main(i)
"""


@cache
def payload() -> bytes:
    """What is sent first: a length, and the agent."""
    folder = resources.files(_PACKAGE)
    parents = [("tpuctl", ""), ("tpuctl.remote", ""), (_PACKAGE, "")]
    modules = [
        (f"{_PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in _MODULES
    ]
    program = zlib.compress(f"SOURCES = {[*parents, *modules]!r}\n{_BOOT}".encode(), 9)
    return str(len(program)).zfill(_LENGTH_DIGITS).encode() + program


def opening(operation: str, **request: object) -> bytes:
    """Everything that a conversation with a worker begins with."""
    return payload() + wire.note(op=operation, **request)
