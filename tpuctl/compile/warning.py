"""What creating a TPU should say of a program before anybody pays for it. Pure."""

from tpuctl.compile.models import Fit
from tpuctl.units import format_bytes


def warn_before_create(fit: Fit) -> str | None:
    """A sentence for a program that cannot fit the TPU to be created; None where it can."""
    if fit.fits:
        return None
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    needed, there = format_bytes(fit.hbm_needed_bytes), format_bytes(fit.hbm_available_bytes)
    return (
        f"{fit.target} does not fit a {fit.accelerator_type}{batch}: each device needs {needed} "
        f"and has {there}. See: tpuctl fit {fit.target} --type {fit.accelerator_type} --max-batch"
    )
