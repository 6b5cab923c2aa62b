"""How many vCPUs a device would need, and what a prediction for other vCPUs rests on. Pure."""

from functools import partial

from tpuctl.pipeline.analyze import CPU_REGIMES, Case
from tpuctl.pipeline.models import Device, Vcpus, Verdict
from tpuctl.pipeline.reference import load_facts
from tpuctl.pipeline.verdict import lock_is_held
from tpuctl.pipeline.whatif import Scaling, what_if

LEAST_BUSY = 0.01


def count_vcpus(case: Case, verdict: Verdict, device: Device | None = None) -> Vcpus:
    """Say how many vCPUs would keep the device busy: batch size x CPU per example / step time.

    An example takes a little more of that on more vCPUs. Refused outside the regimes in which vCPUs
    are what is missing. Where the step time of the device is an interval, so is the answer.
    """
    signals = case.free.signals
    used = signals.cpu_s / signals.wall_s

    def refused(why: str) -> Vcpus:
        return Vcpus(signals.vcpus_usable, used, None, None, None, why)

    if case.device_step_s is None:
        return refused("no device step time: give --device-step-ms or --train")
    if verdict not in CPU_REGIMES:
        return refused(f"the verdict is {verdict}: vCPUs are not what is missing")
    scaling, step_ms = scaling_of(case), case.device_step_s * 1e3
    slow_ms = device.high_ms if device and device.high_ms else step_ms
    fast_ms = device.low_ms if device and device.low_ms else step_ms
    held_ms = case.measured.batch_size * scaling.serial_ms * scaling.cpu_high
    if held_ms > fast_ms:
        return refused(f"Python holds its lock for {held_ms:.3g} ms of a batch, whatever the vCPUs")
    fed = partial(
        what_if,
        batch_size=case.measured.batch_size,
        cpu_ms_per_example=case.parts.cpu_s_per_example * 1e3,
        vcpus=signals.vcpus_usable,
        scaling=scaling,
    )
    return Vcpus(
        signals.vcpus_usable,
        used,
        fed(step_ms=step_ms).vcpus_needed,
        fed(step_ms=slow_ms).vcpus_low,
        fed(step_ms=fast_ms).vcpus_high,
        None,
    )


def scaling_of(case: Case) -> Scaling:
    """What a prediction for other vCPUs rests on: this run, and a dated fact about others."""
    known, signals = load_facts("scaling.json"), case.free.signals
    busy = signals.cpu_s / signals.wall_s + case.others * signals.vcpus_visible
    holding = [each for each in case.parts.stages if each.runs_python and lock_is_held(case)]
    return Scaling(
        busy_vcpus=max(LEAST_BUSY, min(busy, float(signals.vcpus_visible))),
        growth=known["growth_per_doubling"],
        growth_low=known["growth_least"],
        growth_high=known["growth_most"],
        cpu_low=case.parts.low_factor,
        cpu_high=case.parts.high_factor,
        unevenness=case.free.unevenness or 0.0,
        batches_ahead=known["batches_ahead"],
        serial_ms=sum(stage.cpu_ms_per_example for stage in holding),
    )
