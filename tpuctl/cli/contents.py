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

    @property
    def module(self) -> str:
        """The module that holds the command."""
        return f"tpuctl.cli.{self.name}"


CONTENTS = (
    Entry(
        "Input pipelines",
        "profile",
        "Find the stage of an input pipeline that keeps the device waiting.",
    ),
    Entry("Set up", "config", "Show every setting and where its value came from."),
)
