"""The table of contents: every command, in the order of a working day.

A command is a module of `tpuctl.cli` with an `app`; it is imported when it is called. Its line here
is the first line of its help, which a test compares.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One line of `tpuctl --help`."""

    section: str
    name: str
    help: str
    is_group: bool = False

    @property
    def module(self) -> str:
        """The module that holds the command."""
        return f"tpuctl.cli.{self.name}"


CONTENTS = (
    Entry(
        "Where am I",
        "doctor",
        "Say where you are, what accelerator is here, what is wrong and what mends it.",
    ),
    Entry(
        "Where am I",
        "explain",
        "Find an error, or everything a log shows, in the catalogue of failures.",
    ),
    Entry(
        "Where am I",
        "types",
        "Explain accelerator types: chips, workers, memory, zones and prices.",
    ),
    Entry(
        "Cloud TPUs",
        "create",
        "Create a TPU in the first zone that has one, and wait until every worker is ready.",
    ),
    Entry(
        "Cloud TPUs",
        "list",
        "List your TPUs in every zone: state, age, time left, and what they cost.",
    ),
    Entry(
        "Cloud TPUs",
        "show",
        "Show one TPU: workers and addresses, health, what it costs, how long it may live.",
    ),
    Entry(
        "Cloud TPUs",
        "wait",
        "Wait until a TPU is ready on all of its workers, or until it is gone.",
    ),
    Entry(
        "Cloud TPUs",
        "delete",
        "Delete TPUs, exactly those that are shown, and wait until they are gone.",
    ),
    Entry(
        "Cloud TPUs",
        "gc",
        "Find TPUs that are dead, out of time or forgotten; delete them with --yes.",
    ),
    Entry(
        "Cloud TPUs",
        "watch",
        "Run a job and keep it alive: on another TPU when this one is taken away.",
    ),
    Entry(
        "Cloud TPUs",
        "quota",
        "Tell how many chips of which generation your project may have, zone by zone.",
    ),
    Entry(
        "Workers",
        "run",
        "Run a command on every worker at once, and see all they print in one place.",
    ),
    Entry(
        "Workers",
        "cp",
        "Copy a folder or a file to every worker, or from them; only what has changed is sent.",
    ),
    Entry(
        "Workers",
        "logs",
        "Show what a detached job prints on every worker; follow it across lost connections.",
    ),
    Entry(
        "Workers",
        "stop",
        "End a detached job with every process it has started, on every worker.",
    ),
    Entry(
        "Workers",
        "free",
        "Show who has the chips of every worker, and end those processes after a question.",
    ),
    Entry(
        "Workers",
        "top",
        "Show what every worker does: vCPUs, memory, and each chip's duty cycle, HBM and holder.",
    ),
    Entry("Workers", "ssh", "Open a shell on one worker with the system's ssh."),
    Entry(
        "Input pipelines",
        "profile",
        "Find the stage of an input pipeline that keeps the device waiting.",
        is_group=True,
    ),
    Entry(
        "Data sets",
        "data",
        "Shrink photographs once instead of every epoch; verify and show what came out.",
        is_group=True,
    ),
    Entry(
        "Training",
        "fit",
        "Compile for a TPU that you do not have: does it fit, how fast, at what price.",
    ),
    Entry("Training", "launch", "Train a template or a script of yours, with the right strategy."),
    Entry(
        "Training",
        "templates",
        "Training scripts worth copying: list, read, write one into your folder.",
        is_group=True,
    ),
    Entry(
        "Training",
        "bench",
        "Measure how fast this machine trains at several batch sizes; compare two machines.",
        is_group=True,
    ),
    Entry(
        "Practice",
        "emulator",
        "Practise on a Cloud TPU service of your own: real API, no TPU, no bill.",
        is_group=True,
    ),
    Entry("Practice", "demo", "Run the whole day on this machine in minutes, and write a report."),
    Entry("Set up", "config", "Show every setting and where its value came from."),
)
