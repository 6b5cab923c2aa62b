"""What creating a TPU should say of a program before anybody pays for it."""

from tpuctl.compile.cache import Cache, open_cache
from tpuctl.compile.conclude import build_fit
from tpuctl.compile.models import Fit
from tpuctl.units import format_bytes


def warn_before_create(accelerator_type: str, cache: Cache | None = None) -> tuple[str, ...]:
    """A sentence for every program that cannot fit the type, as `fit` last said in this folder.

    A program that has changed since is not spoken of; nothing is compiled. `accelerator_type` is
    the full name.
    """
    answers = (cache or open_cache()).recall(accelerator_type)
    fits = (build_fit(question, found, None, (), 0) for question, found in answers)
    return tuple(_say(fit) for fit in fits if not fit.fits)


def _say(fit: Fit) -> str:
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    needed, there = format_bytes(fit.hbm_needed_bytes), format_bytes(fit.hbm_available_bytes)
    return (
        f"{fit.target} does not fit a {fit.accelerator_type}{batch}: each device needs {needed} "
        f"and has {there}. See: tpuctl fit {fit.target} --type {fit.accelerator_type} --verify"
    )
