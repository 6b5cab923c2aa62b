"""How a command reaches the cloud."""

from typing import TYPE_CHECKING

from tpuctl.cli import output

if TYPE_CHECKING:
    from tpuctl.cloud.connect import Cloud


def opened(project: str | None) -> "Cloud":
    """Connect, and pass on what the journal warns of."""
    # Loaded here, for --host needs no cloud.
    from tpuctl.cloud.connect import open_cloud

    cloud = open_cloud(project)
    for warning in cloud.warnings:
        output.note(f"Warning: {warning}")
    return cloud
