"""How a command reaches the cloud."""

from tpuctl.cli import output
from tpuctl.cloud.opening import Cloud, open_cloud


def opened(project: str | None) -> Cloud:
    """Connect, and pass on what the journal warns of."""
    cloud = open_cloud(project)
    for warning in cloud.warnings:
        output.note(f"Warning: {warning}")
    return cloud
