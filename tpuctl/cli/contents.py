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
        "Data sets",
        "data",
        "Shrink photographs once instead of every epoch; verify and show what came out.",
        is_group=True,
    ),
    Entry(
        "Training",
        "templates",
        "Training scripts worth copying: list, read, write one into your folder.",
        is_group=True,
    ),
    Entry("Set up", "config", "Show every setting and where its value came from."),
)
