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
    Entry("Practice", "demo", "Run the whole day on this machine in minutes, and write a report."),
    Entry("Set up", "config", "Show every setting and where its value came from."),
)
