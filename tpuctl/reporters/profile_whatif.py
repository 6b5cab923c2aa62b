"""The part of the profile's page that recomputes: sliders over vCPUs and step time."""

import math
from html import escape

from tpuctl.profiling.case import CPU_REGIMES
from tpuctl.profiling.models import Profile
from tpuctl.profiling.whatif import Scaling, what_if
from tpuctl.reporters import html

SCRIPT = "whatif.js"
FEWEST_VCPUS = 16
# The step-time slider moves in thousandths of a power of ten, from 0.1 ms to 100 s.
SCALE, SHORTEST, LONGEST = 1000, -1, 5
TYPICAL_STEP_MS = 100.0


def section(profile: Profile) -> str:
    """The sliders, set to what was measured; why there are none where they would mislead."""
    cpu_ms, batch = profile.cpu_ms_per_example, profile.batch_size
    if not cpu_ms or not batch:
        return ""
    if profile.verdict not in CPU_REGIMES:
        why = (
            f"The verdict is {profile.verdict}: more vCPUs would not help, so nothing is computed."
        )
        return html.section("What if", html.paragraph(why, css="soft"))
    step_ms = profile.device.step_ms if profile.device else TYPICAL_STEP_MS
    vcpus = max(1, round(profile.vcpus.available or 1))
    position = round(math.log10(step_ms) * SCALE)
    scaling = profile.scaling or Scaling(busy_vcpus=vcpus)
    shown = what_if(
        batch_size=batch,
        cpu_ms_per_example=cpu_ms,
        vcpus=vcpus,
        step_ms=10 ** (position / SCALE),
        scaling=scaling,
    )
    wanted = shown.vcpus_needed if math.isfinite(shown.vcpus_needed) else vcpus
    most = max(FEWEST_VCPUS, 2 * math.ceil(max(vcpus, wanted)))
    return html.section(
        "What if",
        f'<div class="whatif" data-batch="{batch}" data-cpu="{cpu_ms!r}" data-scale="{SCALE}"'
        + _given(scaling)
        + ">"
        + _slider("vcpus", "vCPUs of the host", "", 1, most, vcpus)
        + _slider("step", "device step", " ms", SHORTEST * SCALE, LONGEST * SCALE, position)
        + '<div class="bars"><div class="bar hot"><span>MXU idle</span>'
        + f'<i style="--share:{shown.mxu_idle_fraction:.4f}"></i>'
        + '<b><span data-say="idle"></span> %</b></div></div>'
        + '<p>Between <span data-say="least"></span> % and <span data-say="most"></span> % idle, '
        + 'by what the measurement leaves open; <span data-say="rate"></span> examples/s; '
        + 'the device would need <span data-say="needed"></span> vCPUs.</p></div>',
        html.paragraph(_basis(batch, cpu_ms, scaling), css="soft"),
    )


def _basis(batch: int, cpu_ms: float, scaling: Scaling) -> str:
    """Say in words what is computed with."""
    return (
        f"{cpu_ms:.4g} ms CPU per example, batches of {batch:,}; the idle share of the MXU is "
        "1 - step x vCPUs / (batch x CPU), and more where batches come unevenly. With every "
        f"doubling of the {scaling.busy_vcpus:.2g} vCPUs that were busy, an example takes "
        f"{scaling.growth:.0%} more CPU time ({scaling.growth_low:.0%} to "
        f"{scaling.growth_high:.0%}). What else could become the limit is not in it."
    )


def _given(scaling: Scaling) -> str:
    """What the page's script computes with."""
    values = {
        "busy": scaling.busy_vcpus,
        "growth": scaling.growth,
        "growth-low": scaling.growth_low,
        "growth-high": scaling.growth_high,
        "cpu-low": scaling.cpu_low,
        "cpu-high": scaling.cpu_high,
        "unevenness": scaling.unevenness,
        "ahead": scaling.batches_ahead,
        "serial": scaling.serial_ms,
    }
    return "".join(f' data-{name}="{value!r}"' for name, value in values.items())


def _slider(name: str, label: str, unit: str, low: int, high: int, value: int) -> str:
    return (
        f"<label><span>{escape(label)}</span>"
        f'<input type="range" name="{name}" min="{low}" max="{high}" value="{value}">'
        f'<b><span data-say="{name}"></span>{unit}</b></label>'
    )
