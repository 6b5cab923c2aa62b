"""`tpuctl doctor`, `explain`, `types`, `config`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tpuctl
from tpuctl.cli import output
from tpuctl.cli.options import Argument, Option, Yes
from tpuctl.errors import refuse_unused

Deep = Annotated[bool, Option("--deep", help="Run a small computation on the accelerator.")]
Numerics = Annotated[
    bool, Option("--numerics", help="Compare the accelerator's arithmetic with float64.")
]
Fix = Annotated[bool, Option("--fix", help="Apply safe fixes after confirmation.")]
Record = Annotated[
    Path | None,
    Option(metavar="FILE", help="Write this machine to a JSON file, with secrets removed."),
]
Replay = Annotated[Path | None, Option(metavar="FILE", help="Diagnose a recorded machine instead.")]
Text = Annotated[
    list[str] | None,
    Argument(
        metavar="[TEXT|CODE|FILE|-]...",
        help="Error text, a code, or files: logs and notebooks. Default: stdin (-).",
    ),
]
Type = Annotated[
    str | None,
    Argument(metavar="[TYPE]", help="Accelerator type such as v5e-8; gpus lists GPUs too."),
]


def doctor(
    deep: Deep = False,
    numerics: Numerics = False,
    fix: Fix = False,
    yes: Yes = False,
    record: Record = None,
    replay: Replay = None,
    provider: Annotated[
        str | None,
        Option(
            "--provider",
            metavar="PROVIDER",
            help="Check your account at a provider instead, such as kaggle.",
        ),
    ] = None,
) -> None:
    """Diagnose this machine: accelerator, frameworks, problems, fixes.

    Examples:
        tpuctl doctor
        tpuctl doctor --deep
        tpuctl doctor --fix --yes
        tpuctl doctor --provider kaggle
    """
    refuse_unused({"--yes": yes and not fix}, "without --fix")
    confirm = partial(output.announce_and_confirm, yes=yes)
    options: dict[str, Any] = {"deep": deep, "numerics": numerics, "fix": fix}
    options |= {"record": record, "replay": replay}
    if provider:
        output.show(tpuctl.doctor(provider=provider, **options))
        return
    output.show(tpuctl.doctor(**options, confirm=confirm))


def explain(text: Text = None) -> None:
    """Explain an error, or every error in a log, and how to fix it.

    Examples:
        tpuctl explain "The TPU is already in use by process with pid 7"
        tpuctl logs my-tpu | tpuctl explain
        tpuctl explain worker-0.log worker-1.log notebook.ipynb
        tpuctl explain F05
    """
    piped = [] if sys.stdin is None or sys.stdin.isatty() else ["-"]
    output.show(tpuctl.explain(*(text or piped)))


def types(accelerator_type: Type = None) -> None:
    """Show accelerator types: chips, workers, memory, zones and prices.

    Examples:
        tpuctl types
        tpuctl types v5e-8
        tpuctl types gpus
    """
    output.show(tpuctl.types(accelerator_type))


def config() -> None:
    """Show every setting and where its value came from.

    Examples:
        tpuctl config
        tpuctl config --json
    """
    output.show(tpuctl.config())
