"""Measure training speed over batch sizes, and compare two machines."""

import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tpuctl.clock import WallClock
from tpuctl.codec import from_plain, read_json
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    ScriptFailedError,
    StoppedError,
    TpuctlError,
    UsageError,
)
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, Progress
from tpuctl.training.catalog import Template
from tpuctl.training.environment import Change
from tpuctl.training.plan import find_script, pick_choice, plan_training
from tpuctl.training.run import run_training


@dataclass(frozen=True)
class Variant:
    """One way to train on this machine: device, framework and strategy."""

    device: str
    framework: str
    strategy: str
    cpu_devices: int | None = None
    hides_accelerators: bool = False


@dataclass(frozen=True)
class Row:
    """One training run: the first epoch, which compiles, and the means of the others.

    `batch_size` is global. `us_per_example` is an epoch's time over its examples; `_low` and
    `_high` are those of the fastest and the slowest epoch. `steps` is the number in the mean.
    """

    device: str
    framework: str
    strategy: str
    batch_size: int
    replicas: int
    first_epoch_s: float
    epoch_s: float
    step_ms: float
    us_per_example: float
    examples_per_s: float
    us_per_example_low: float | None = None
    us_per_example_high: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Bench(Outcome):
    """A sweep over batch sizes on every device of this machine.

    `date` is the UTC date as YYYY-MM-DD; empty if a file has none.
    """

    machine: str
    date: str
    template: str
    examples_per_epoch: int
    epochs: int
    rows: tuple[Row, ...]
    plot: str | None
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def place(self) -> str:
        """The machine and the date."""
        return f"{self.machine}, {self.date}" if self.date else self.machine

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warn about batch sizes that were measured with too few steps."""
        few = {row.batch_size for row in self.rows if (row.steps or LEAST_STEPS) < LEAST_STEPS}
        sizes = ", ".join(f"{size:,}" for size in sorted(few))
        text = f"Fewer than {LEAST_STEPS} steps with a batch of {sizes}: --examples or --epochs."
        return (text,) if few else ()

    @property
    def status(self) -> Status:
        """Partial if some runs failed, error if all did."""
        return "partial" if self.failures and self.rows else super().status


# The mean of fewer steps says little.
LEAST_STEPS = 10


@dataclass(frozen=True)
class Column:
    """The measurements of one machine with one device, framework and strategy."""

    machine: str
    device: str
    framework: str
    strategy: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class SpeedUp:
    """Compares two machines at one batch size, or at their best ones if `batch_size` is None."""

    batch_size: int | None
    before: Row
    after: Row
    speed_up: float
    first_epoch_speed_up: float


@dataclass(frozen=True)
class Comparison(Outcome):
    """How much faster the second machine is than the first."""

    template: str
    before: str
    after: str
    speed_ups: tuple[SpeedUp, ...]
    columns: tuple[Column, ...] = ()


_HINT = "Create one with: tpuctl bench --json > FILE.json"


def compare(before: Bench, after: Bench) -> Comparison:
    """Compare two sweeps at each common batch size and at their best.

    Raises InvalidInputError if they measured different templates.
    """
    if before.template != after.template:
        raise InvalidInputError(
            f"Could not compare: {before.template} and {after.template} are different templates.",
            hint="Run both with the same --template.",
        )
    sizes = [*sorted(_sizes(before) & _sizes(after)), None]
    return Comparison(
        before.template,
        before.place,
        after.place,
        tuple(_speed_up(size, before, after) for size in sizes),
        tuple(column for bench in (before, after) for column in _columns(bench)),
    )


def _columns(bench: Bench) -> Iterable[Column]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in bench.rows:
        found.setdefault((row.device, row.framework, row.strategy), []).append(row)
    return (Column(bench.place, *key, tuple(rows)) for key, rows in found.items())


def load(path: Path) -> Bench:
    """Read the output of `tpuctl bench --json`; raises NotFoundError or InvalidInputError."""
    try:
        document = read_json(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"The file {path} does not exist.", hint=_HINT) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"Could not read {path}: {error}", hint=_HINT) from error
    try:
        bench = from_plain(Bench, {"date": "", "plot": None, **document["data"]})
        times = [(row.first_epoch_s, row.epoch_s, row.us_per_example) for row in bench.rows]
        if any(min(each) <= 0 for each in times):
            raise ValueError("times must be positive")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is not a bench result: {error}.", hint=_HINT) from error
    if not times:
        raise InvalidInputError(f"{path} has no measurements.", hint=_HINT)
    return bench


def _sizes(bench: Bench) -> set[int]:
    return {row.batch_size for row in bench.rows}


def _speed_up(size: int | None, before: Bench, after: Bench) -> SpeedUp:
    one, other = (
        min(
            (row for row in bench.rows if size in (None, row.batch_size)),
            key=lambda row: row.us_per_example,
        )
        for bench in (before, after)
    )
    times = one.us_per_example / other.us_per_example, one.first_epoch_s / other.first_epoch_s
    return SpeedUp(size, one, other, *(round(each, 2) for each in times))


# MNIST has 60,000 training examples; on a CPU, such an epoch takes minutes.
EXAMPLES_ON_ACCELERATOR = 60_000
EXAMPLES_ON_CPU = 4_096
_ALONE = {"tensorflow": "default", "jax": "single"}
_ON_CPU = {"tensorflow": "default", "jax": "cpu"}
_HIDE = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}


def plan_variants(
    here: Diagnosis, script: Template, *, framework: str = "auto", cpu_devices: int | None = None
) -> tuple[Variant, ...]:
    """List what to measure: the accelerator with all replicas and with one, and the CPU.

    `cpu_devices` adds the CPU split into that many virtual devices.
    """
    choice = pick_choice(
        script, here.strategies, preferred=here.recommended.framework, framework=framework
    )
    name, variants = choice.framework, []
    if name not in _ALONE:
        raise UsageError(f"bench does not support {name}, only TensorFlow and JAX.")
    count, kind = _accelerators(here)
    on_cpu = {_ON_CPU[name], "default"}
    if count and choice.strategy not in on_cpu | {_ALONE[name]}:
        variants.append(Variant(f"{kind} x{count}", name, choice.strategy))
    if here.gpus or (count and choice.strategy == _ALONE[name]):
        variants.append(Variant(f"{kind} x1", name, _ALONE[name]))
    variants.append(Variant("CPU", name, _ON_CPU[name], hides_accelerators=bool(count)))
    if cpu_devices:
        spread = "mirrored" if name == "tensorflow" else "mesh"
        variants.append(Variant(f"CPU split in {cpu_devices}", name, spread, cpu_devices))
    return tuple(variants)


def run_bench(
    here: Diagnosis,
    *,
    template: str,
    batch_sizes: Sequence[int],
    epochs: int,
    on_progress: OnProgress,
    framework: str = "auto",
    examples: int | None = None,
    cpu_devices: int | None = None,
) -> Bench:
    """Train the template once for each variant and batch size, each in its own process.

    Raises UsageError if there are fewer than two epochs, if a batch is larger than an epoch, or if
    the template lacks a flag that bench sets. Ctrl-C ends the sweep; what was measured is returned.
    """
    script = find_script(template)
    variants = plan_variants(here, script, framework=framework, cpu_devices=cpu_devices)
    on_cpu = all(variant.device.startswith("CPU") for variant in variants)
    usual = EXAMPLES_ON_CPU if on_cpu else EXAMPLES_ON_ACCELERATOR
    # At least ten steps of the largest batch, in all epochs except the first.
    least = -(-LEAST_STEPS // max(1, epochs - 1)) * max(batch_sizes, default=1)
    _check(batch_sizes, epochs, examples or usual)
    examples = examples or max(usual, least)
    rows: list[Row] = []
    errors: list[TpuctlError] = []
    jobs = [(variant, size) for variant in variants for size in batch_sizes]
    try:
        for done, (variant, size) in enumerate(jobs):
            name = f"{variant.device}, {size}"
            on_progress(Progress("bench", done, len(jobs), "trainings", name))
            settings = {"data": "fake", "examples": examples, "epochs": epochs, "batch-size": size}
            try:
                rows.append(_row(variant, size, _train(here, template, variant, settings)))
            except ScriptFailedError as error:
                errors.append(error)
        on_progress(Progress("bench", len(jobs), len(jobs), "trainings", ""))
    except KeyboardInterrupt:
        if not rows:
            raise
        errors.append(StoppedError(f"Interrupted after {len(rows)} of {len(jobs)} trainings."))
    today = WallClock().now().date().isoformat()
    return Bench(
        _machine(here), today, script.name, examples, epochs, tuple(rows), None, tuple(errors)
    )


def parse_batches(text: str) -> tuple[int, ...]:
    """Read `256,512,1024`; raises UsageError."""
    try:
        sizes = tuple(int(word) for word in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise UsageError(
            f"--batch {text!r} is not a list of batch sizes.", hint="For example: 256,512,1024"
        )
    return tuple(dict.fromkeys(sizes))


def _check(batch_sizes: Sequence[int], epochs: int, examples: int) -> None:
    if epochs < 2:
        raise UsageError(
            f"--epochs {epochs} is too few: the first epoch compiles and is not counted.",
            hint="--epochs 3",
        )
    if not batch_sizes or min(batch_sizes) < 1:
        raise UsageError("Batch sizes must be at least 1.", hint="For example: 256,512,1024")
    if max(batch_sizes) > examples:
        raise UsageError(
            f"--batch {max(batch_sizes)} is larger than the epoch of {examples} examples.",
            hint=f"--examples {4 * max(batch_sizes)}",
        )


def _train(
    here: Diagnosis, template: str, variant: Variant, settings: dict[str, object]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        out = Path(folder) / "out"
        plan = plan_training(
            template,
            here,
            framework=variant.framework,
            strategy=variant.strategy,
            settings=[f"{name}={value}" for name, value in {**settings, "out": out}.items()],
            cpu_devices=variant.cpu_devices,
        )
        if variant.hides_accelerators:
            hidden = (f"{Change(name, value, 'only the CPU')}" for name, value in _HIDE.items())
            plan = replace(plan, env={**plan.env, **_HIDE}, because=(*plan.because, *hidden))
        training = run_training(
            plan,
            log=subprocess.DEVNULL,
            errors=Path(folder) / "stderr.log",
            stdin=subprocess.DEVNULL,
        )
    if training.stopped:
        # Also where the script overlooked it, as imports can.
        raise KeyboardInterrupt
    if training.failures:
        raise training.failures[0]
    return dict(training.result or {})


def _row(variant: Variant, batch_size: int, result: dict[str, Any]) -> Row:
    try:
        first, *rest = result["epochs"]
        times = [epoch["seconds"] for epoch in rest]
        epoch_s, steps = fmean(times), rest[0]["steps"]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise InvalidInputError("The template's result.json has no epoch times.") from error
    examples = steps * batch_size
    return Row(
        device=variant.device,
        framework=variant.framework,
        strategy=variant.strategy,
        batch_size=batch_size,
        replicas=result["replicas"],
        first_epoch_s=first["seconds"],
        epoch_s=round(epoch_s, 4),
        step_ms=round(epoch_s / steps * 1e3, 3),
        us_per_example=round(epoch_s / examples * 1e6, 3),
        examples_per_s=round(examples / epoch_s, 1),
        us_per_example_low=round(min(times) / examples * 1e6, 3),
        us_per_example_high=round(max(times) / examples * 1e6, 3),
        steps=steps * len(times),
    )


def _accelerators(here: Diagnosis) -> tuple[int, str]:
    if here.accelerator in ("tpu", "tpu-remote"):
        return here.devices or here.remote_cores or 1, f"TPU {here.generation or ''}".strip()
    return here.gpus, here.gpu_names[0] if here.gpu_names else "GPU"


def name_place() -> str:
    """Describe this machine in a few words, without its name, and the date."""
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.runtime.live import live_machine

    return f"{_machine(diagnose(live_machine()))}, {WallClock().now().date()}"


def _machine(here: Diagnosis) -> str:
    count, kind = _accelerators(here)
    cpus = f"{here.host.vcpus:g} vCPUs" if here.host.vcpus else "CPU"
    return ", ".join([here.runtime, *([f"{count} {kind}"] if count else []), cpus])


def draw(bench: Bench, path: Path) -> Bench:
    """Plot microseconds per example against batch size as a PNG, one curve per device.

    Raises MissingExtraError without matplotlib.
    """
    from tpuctl.training._plot import plan_plot, write_curves

    write_curves(path, **plan_plot(bench))
    return replace(bench, plot=str(path))
