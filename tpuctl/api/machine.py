"""This machine and the types of TPUs from Python: doctor, explain, types, config."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tpuctl.errors import InvalidInputError, NotFoundError, UsageError, refuse_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from tpuctl.diagnosis.explain import Explanation
    from tpuctl.diagnosis.report import Diagnosis
    from tpuctl.hardware.types import AcceleratorType, TypeTable
    from tpuctl.providers.check import ProviderCheck
    from tpuctl.settings import Settings


@overload
def doctor(*, provider: str, **options: Any) -> ProviderCheck: ...
@overload
def doctor(*, provider: None = None, **options: Any) -> Diagnosis: ...
def doctor(  # type: ignore[misc]
    *,
    deep: bool = False,
    numerics: bool = False,
    fix: bool = False,
    record: str | PathLike[str] | None = None,
    replay: str | PathLike[str] | None = None,
    provider: str | None = None,
    confirm: Callable[[str], None] = lambda question: None,
) -> Diagnosis | ProviderCheck:
    """Diagnose this machine: runtime, accelerator, frameworks, problems and how to fix them.

    `deep` and `numerics` use the accelerator, in a child process. `fix` applies the safe fixes;
    `confirm` is called with a description before each one, and raises an exception to stop.
    `record` is a file to write this machine to, with secrets removed; `replay` is one to diagnose.
    With a `provider` it checks the account there instead: login, balance, what is available.
    """
    if provider:
        from tpuctl.providers.check import check_provider
        from tpuctl.providers.registry import open_provider

        given = {"--deep": deep, "--numerics": numerics, "--fix": fix}
        refuse_unused({**given, "--record": record, "--replay": replay}, "with --provider")
        return check_provider(open_provider(provider))
    from tpuctl.diagnosis.diagnose import examine

    diagnosis = examine(
        deep=deep,
        numerics=numerics,
        record=Path(record) if record else None,
        replay=Path(replay) if replay else None,
        approve=confirm if fix else None,
    )
    in_notebook = "IPython" in sys.modules or "JPY_SESSION_NAME" in os.environ
    if not replay and (in_notebook or diagnosis.runtime.startswith("colab")):
        from tpuctl.linting.own_notebook import look_at_own_notebook

        notebook = look_at_own_notebook(diagnosis.runtime)
        diagnosis = replace(diagnosis, own_notebook=notebook)
    return diagnosis


def explain(*text: str | BaseException) -> Explanation:
    """Find known failures in an error or its message, a code such as F05, or logs; `-` is stdin.

    The names of several files are the logs of several workers. Of a notebook (`.ipynb`), the
    errors in its outputs are read. A code such as T105 is a rule of `lint`.

    Raises NotFoundError if there is no such log or code, InvalidInputError if a log is empty or a
    folder, UsageError if there is no text.
    """
    from tpuctl.diagnosis.explain import explain as explain_text
    from tpuctl.diagnosis.explain import explain_logs, this_machine
    from tpuctl.diagnosis.log_text import looks_like_file, read_file

    words = tuple(word for word in map(_traced, text) if word.strip())
    if re.fullmatch(r"\s*[Tt][0-9]{1,9}\s*", " ".join(words)):
        return _rules(" ".join(words).strip())
    if not words:
        raise _nothing_to_explain()
    if all(word == "-" or _is_file(word) for word in words):
        logs = {word: _standard_input() if word == "-" else read_file(Path(word)) for word in words}
        found = explain_logs(logs, here=this_machine)
        if not found.characters:
            raise _empty(words)
        return found
    if all(_is_path(word) and Path(word).is_dir() for word in words):
        logs_there = f"{shlex.quote(words[0])}/*.log"
        raise InvalidInputError(
            f"{words[0]} is a folder.", hint=f"Pass the logs in it: tpuctl explain {logs_there}"
        )
    if all(word == "-" or _is_file(word) or looks_like_file(word) for word in words):
        missing = next(word for word in words if word != "-" and not _is_file(word))
        raise NotFoundError(f"{missing} does not exist.", hint="Pass a log, or the error itself.")
    return explain_text(" ".join(words), here=this_machine)


def _traced(text: str | BaseException) -> str:
    return "".join(traceback.format_exception(text)) if isinstance(text, BaseException) else text


def _rules(code: str) -> Explanation:
    from tpuctl.diagnosis.explain import Explanation, no_such_code
    from tpuctl.linting.models import rules
    from tpuctl.linting.run import explain_rules

    found = explain_rules(code)
    if not found and (error := no_such_code(code, rules())):
        raise error
    return found or Explanation((), len(code))


def _standard_input() -> Iterator[str]:
    from tpuctl.diagnosis.log_text import read_stream

    is_empty = True
    for piece in read_stream(sys.stdin.buffer, "the input") if sys.stdin else ():
        is_empty = is_empty and not piece.strip()
        yield piece
    if is_empty:
        raise _nothing_to_explain()


def _nothing_to_explain() -> UsageError:
    return UsageError(
        "No text to explain.",
        hint="Pass the error, or pipe a log: python train.py 2>&1 | tpuctl explain",
    )


def _empty(names: tuple[str, ...]) -> InvalidInputError:
    if all(name.endswith(".ipynb") for name in names):
        what = "no output of a cell has an error or text"
        return InvalidInputError(
            f"There is nothing to explain in {', '.join(names)}: {what}.",
            hint="Run the notebook, save it with its outputs, and try again.",
        )
    return InvalidInputError(
        f"There is nothing to explain in {', '.join(names)}: no text.",
        hint="Write both outputs of the program to the log: python train.py > train.log 2>&1",
    )


def _is_path(word: str) -> bool:
    # A long error message is not a path, and the system refuses to look for one of that length.
    return len(word) < 256 and "\n" not in word and "\0" not in word


def _is_file(word: str) -> bool:
    return _is_path(word) and Path(word).is_file()


def types(accelerator_type: str | None = None) -> AcceleratorType | TypeTable:
    """Describe one accelerator type such as v5e-8, or list all generations.

    "gpus", or the name of one, lists GPUs too.
    """
    from tpuctl.hardware.types import all_types, all_types_and_gpus, describe

    if not accelerator_type:
        return all_types()
    return all_types_and_gpus(accelerator_type) or describe(accelerator_type)


def config() -> Settings:
    """Return every setting, where its value came from, and what was ignored."""
    from tpuctl.settings import load_settings

    return load_settings(quiet=True)
