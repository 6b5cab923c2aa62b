"""What an error in the user's code, or the log of a process that died, says in one sentence."""

import re
import sysconfig
import traceback
from pathlib import Path

LONGEST = 300
# TensorFlow wraps its own names around what the user's operation said.
_WRAPPING = re.compile(
    r"\{\{function_node [^}]*\}\}"
    r"|\[\[\{\{.*?\}\}\]\]"
    r"|\[Op:\w+\]( name:.*)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# https://abseil.io/docs/cpp/guides/logging#prefix and the older form with a date; F is fatal.
_LOG_LINE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:\d+(:\d\d)?\.\d+ "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    r"|WARNING: All log messages before absl::"
    r"|To enable the following instructions: "
    # What libtpu says on a machine without a TPU.
    r"|WARNING: Logging before InitGoogle"
    r"|Failed to find host bounds for accelerator type"
    r"|=== Source Location Trace"
    r"|learning/\S+:\d+$"
)
_NOT_THE_USERS = (
    "site-packages",
    "dist-packages",
    "__autograph",
    str(Path(__file__).resolve().parents[1]),
    sysconfig.get_path("stdlib"),
)


def describe(error: BaseException) -> str:
    """Say in one sentence what went wrong and where in the user's files."""
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{name}: {error.msg} ({error.filename}:{error.lineno})"
    text = str(error)
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames += [(file, int(line)) for file, line in _FRAME.findall(text)]
    places = [(file, line) for file, line in frames if _is_the_users(file)]
    place = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    said = _said(text)
    return f"{name}: {said[:LONGEST]}{place}" if said else f"{name}{place}"


def last_words(log: str) -> str:
    """Find the last line of a log that is not TensorFlow's talk about its start; may be empty."""
    lines = (line.strip() for line in log.splitlines())
    words = [line for line in lines if line and not _LOG_LINE.match(line)]
    return words[-1][:LONGEST] if words else ""


def _is_the_users(file: str) -> bool:
    return not file.startswith("<") and not any(part in file for part in _NOT_THE_USERS)


def _said(text: str) -> str:
    lines = [_WRAPPING.sub("", line).strip(" \t:") for line in text.splitlines()]
    words = [line for line in lines if line] or [""]
    # AutoGraph puts a traceback into the message; what happened comes last.
    return words[-1] if text.lstrip().startswith("in user code:") else words[0]
