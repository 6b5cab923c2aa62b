"""Summarise an error in user code, or the log of a dead process, in one sentence."""

import re
import sysconfig
import traceback
from pathlib import Path

LONGEST = 300
# TensorFlow wraps its own names around the message of the user's operation.
_WRAPPING = re.compile(
    r"\{\{function_node [^}]*\}\}"
    r"|\[\[\{\{.*?\}\}\]\]"
    r"|\[Op:\w+\]( name:.*)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+"
)
_TRACEBACK = re.compile(r"\s*(?:in user code:|Caught \w+ in (?:DataLoader|pin memory|replica) )")
_KERAS = "Exception encountered when calling "
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# https://abseil.io/docs/cpp/guides/logging#prefix and the older form with a date; F is fatal.
_LOG_LINE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:\d+(:\d\d)?\.\d+ "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    r"|WARNING: All log messages before absl::"
    r"|To enable the following instructions: "
    # libtpu's message on a machine without a TPU.
    r"|WARNING: Logging before InitGoogle"
    r"|Failed to find host bounds for accelerator type"
    r"|=== Source Location Trace"
    r"|learning/\S+:\d+$"
    # The stack trace after a crash.
    r"|\*\*\* |PC: @|@ +0x|https://symbolize"
)
# "F1121 17:50:44.871491 28536 env.cc:93] Check failed: ...": the cause of a crash.
_FATAL = re.compile(r"F\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (.*)")
_NO_MEMORY = re.compile(
    r"bad_alloc|MemoryError|pthread_create|[Cc]annot allocate memory|[Oo]ut of memory"
    r"|[Ff]ailed to map segment"
)
_NOT_THE_USERS = (
    "site-packages",
    "dist-packages",
    "__autograph",
    str(Path(__file__).resolve().parents[1]),
    sysconfig.get_path("stdlib"),
)


def describe(error: BaseException) -> str:
    """Summarise an exception: its type, its message and the line in the user's files."""
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{name}: {error.msg} ({error.filename}:{error.lineno})"
    text = str(error)
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames += [(file, int(line)) for file, line in _FRAME.findall(text)]
    places = [
        (file, line)
        for file, line in frames
        if not file.startswith("<") and not any(part in file for part in _NOT_THE_USERS)
    ]
    place = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    message = _message(text).removeprefix(f"{name}: ")
    return f"{name}: {message[:LONGEST]}{place}" if message else f"{name}{place}"


def last_line(log: str) -> str:
    """Return the last line of a log that is not a framework's start-up message; may be empty."""
    lines = [line.strip() for line in log.splitlines()]
    fatal = [found[1] for line in lines if (found := _FATAL.match(line))]
    words = fatal[:1] or [line for line in lines if line and not _LOG_LINE.match(line)]
    return words[-1][:LONGEST] if words else ""


def ran_out_of_memory(log: str) -> bool:
    """Whether a log shows a failed memory allocation."""
    return bool(_NO_MEMORY.search(log))


def _message(text: str) -> str:
    lines = [_WRAPPING.sub("", line).strip(" \t:") for line in text.splitlines()]
    # Keras writes first where it was, then what happened.
    words = [line for line in lines if line and not line.startswith(_KERAS)] or [""]
    # AutoGraph and PyTorch put a traceback into the message; the error itself comes last.
    return words[-1] if _TRACEBACK.match(text) else words[0]
