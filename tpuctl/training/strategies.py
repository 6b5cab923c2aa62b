"""`tpuctl.strategy`: open the right devices and derive batch size and learning rate."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, _GeneratorContextManager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec

from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.outcome import Outcome
from tpuctl.printable import printable
from tpuctl.runtime.live import live_machine
from tpuctl.training import snippets
from tpuctl.training.choose import FRAMEWORKS, UNUSABLE, Choice
from tpuctl.training.environment import (
    Change,
    apply_changes,
    find_libtpu,
    keras_backend,
    plan_environment,
)
from tpuctl.training.plan import on_virtual_devices
from tpuctl.training.schedules import scaled_rate
from tpuctl.units import format_count

# Keras' own default.
PER_REPLICA_BATCH_SIZE = 32
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Strategy(Outcome):
    """Opened devices, and the batch size and learning rate derived from their number.

    `batch_size` is global: over all replicas together. `native` is TensorFlow's strategy or JAX's
    mesh. `learning_rate_because` says how the rate was derived, if it was. `changes` are the
    environment variables that were repaired.
    """

    framework: str
    name: str
    because: str
    devices: tuple[str, ...]
    replicas: int
    batch_size: int
    learning_rate: float | None
    changes: tuple[Change, ...]
    native: Any = field(metadata={"internal": True})
    scope: Callable[[], AbstractContextManager[Any]] = field(metadata={"internal": True})
    learning_rate_because: str = "as given"

    @property
    def per_replica_batch_size(self) -> int:
        """The examples of a batch per replica."""
        return self.batch_size // self.replicas

    @property
    def decisions(self) -> tuple[tuple[str, str], ...]:
        """Every decision, as a name and a value."""
        rate = self.learning_rate
        pairs = (
            ("strategy", f"{self.name} on {self.framework} ({self.because})"),
            ("devices", f"{', '.join(self.devices)} ({format_count(self.replicas, 'replica')})"),
            ("batch", f"{self.batch_size} global, {self.per_replica_batch_size} per replica"),
            ("learning rate", f"{rate or 0:g} ({self.learning_rate_because})"),
            *(("environment", str(change)) for change in self.changes),
        )
        return tuple(pair for pair in pairs if rate is not None or pair[0] != "learning rate")

    def __str__(self) -> str:
        """Describe every decision, one per line, to print before training."""
        return "\n".join(printable(f"{name}: {value}") for name, value in self.decisions)


class _Unopened(_GeneratorContextManager[Strategy]):
    def __repr__(self) -> str:
        return (
            "<tpuctl strategy: not open yet; with tpuctl.strategy() as strategy: print(strategy)>"
        )


def _block(function: Callable[_P, Generator[Strategy, None, None]]) -> Callable[_P, _Unopened]:
    """Do what `contextmanager` does, and show how the result is used."""

    @wraps(function)
    def make(*arguments: _P.args, **named: _P.kwargs) -> _Unopened:
        return _Unopened(function, arguments, named)

    return make


@_block
def strategy(
    name: str = "auto",
    *,
    framework: str = "auto",
    batch_size: int | None = None,
    per_replica_batch_size: int | None = None,
    learning_rate: float | None = None,
    base_batch_size: int | None = None,
    cpu_devices: int | None = None,
    here: Diagnosis | None = None,
) -> Generator[Strategy, None, None]:
    """Open the devices of this machine with the right strategy while the block runs.

        with tpuctl.strategy("auto", per_replica_batch_size=64, learning_rate=1e-3) as strategy:
            print(strategy)
            with strategy.scope():
                model = make_model(strategy.learning_rate)

    `name` is "auto", "tpu", or a strategy from `tpuctl doctor`. Call it before the framework is
    imported: environment variables that would break it are fixed first and listed in `changes`.
    The global batch is `batch_size`, or `per_replica_batch_size` (32) times the replicas;
    `learning_rate` is used as given, unless `base_batch_size` says for which global batch it was
    chosen: then it is scaled linearly. `cpu_devices` splits the CPU into that many virtual
    devices instead, for practice on any machine.

    Raises InvalidInputError for a strategy that this machine does not offer, for a batch that is
    not divisible by the replicas and for another framework than the imported Keras runs on,
    NotFoundError if the framework is not installed.
    """
    here = here or diagnose(live_machine())
    choice = choose_for(here, name, framework)
    _check_keras(choice.framework)
    if cpu_devices is not None:
        if cpu_devices < 1:
            raise InvalidInputError(f"cpu_devices must be at least 1, not {cpu_devices}.")
        choice = on_virtual_devices(choice, cpu_devices) if name == "auto" else choice
    codes = {problem.code for problem in here.problems}
    changes = plan_environment(choice, codes, os.environ, libtpu=find_libtpu())
    apply_changes(changes, os.environ)
    adapter = _adapter(choice.framework)
    if cpu_devices:
        adapter.split_cpu(cpu_devices)
    with adapter.open_devices(choice.strategy, remote=os.environ.get("TPU_NAME")) as opened:
        size = _global_batch(opened.replicas, batch_size, per_replica_batch_size)
        rate, because = _derive_rate(learning_rate, size, base_batch_size)
        yield Strategy(
            framework=choice.framework,
            name=choice.strategy,
            because=choice.because,
            devices=opened.names,
            replicas=opened.replicas,
            batch_size=size,
            learning_rate=rate,
            learning_rate_because=because,
            changes=changes,
            native=opened.native,
            scope=opened.scope,
        )


def _derive_rate(given: float | None, batch: int, base: int | None) -> tuple[float | None, str]:
    if given is None or base is None:
        return given, "as given"
    rate = scaled_rate(given, batch_size=batch, base_batch_size=base)
    return rate, f"{given:g} x {batch} / {base}: scaled linearly with the batch"


def choose_for(here: Diagnosis, name: str, framework: str) -> Choice:
    """Pick a strategy by name from those available on a machine."""
    able = [choice for choice in here.strategies if choice.framework in ("tensorflow", "jax")]
    if framework not in ("auto", *FRAMEWORKS):
        raise InvalidInputError(
            f"Unknown framework {framework!r}.", hint="Use auto, tensorflow or jax."
        )
    if framework == "torch":
        raise InvalidInputError(
            "PyTorch has no strategy scope: torch_xla and TorchTPU start processes instead.",
            hint="tpuctl doctor shows the code for it.",
        )
    wanted = _framework(here, name) if framework == "auto" else framework
    found = next((choice for choice in able if choice.framework == wanted), None)
    if found is None or found.strategy == "not-installed":
        raise NotFoundError(
            f"Could not open a strategy: {wanted} is not installed.",
            hint=snippets.install_line(here.accelerator, (wanted,)),
        )
    if name == "auto":
        usable = "default" if found.strategy in UNUSABLE else found.strategy
        return Choice(wanted, usable, found.because, found.snippet)
    if name == "tpu":
        return _require_tpu(here, found)
    if name not in snippets.known(wanted) or name in UNUSABLE:
        known = [one for one in snippets.known(wanted) if one not in UNUSABLE]
        raise InvalidInputError(
            f"{name!r} is not a strategy for {wanted}.",
            hint=f"Choose from: auto, tpu, {', '.join(known)}.",
        )
    return Choice(wanted, name, "requested by name", "")


def _keras_backend() -> str | None:
    """Return the backend of Keras if it is imported; it cannot change any more."""
    keras = sys.modules.get("keras")
    return str(keras.backend.backend()) if keras else None


def _check_keras(framework: str) -> None:
    imported = _keras_backend()
    if imported not in (None, framework):
        raise InvalidInputError(
            f"Keras is imported and runs on {imported}, so it cannot run on {framework}.",
            hint="In a new process or after a restart of the notebook, call tpuctl.strategy first.",
        )


def _framework(here: Diagnosis, name: str) -> str:
    """Return the imported framework, or that of the strategy, or the recommended one."""
    if imported := _keras_backend():
        return imported
    told = keras_backend(os.environ, {problem.code for problem in here.problems})
    if told and told != "torch":
        return told
    owners = [f for f in ("tensorflow", "jax") if name in snippets.known(f)]
    recommended = here.recommended.framework
    if owners and recommended not in owners:
        return owners[0]
    return recommended if recommended in ("tensorflow", "jax") else "tensorflow"


def _require_tpu(here: Diagnosis, found: Choice) -> Choice:
    if here.accelerator in ("tpu", "tpu-remote") and found.strategy not in (*UNUSABLE, "cpu"):
        return found
    raise InvalidInputError(
        f"{found.framework} has no TPU to use here: {found.because}.",
        hint="tpuctl doctor",
    )


def _adapter(framework: str) -> ModuleType:
    return import_module(f"tpuctl.training._{framework}")


def _global_batch(replicas: int, total: int | None, each: int | None) -> int:
    if total is not None and each is not None:
        raise InvalidInputError(
            "batch_size and per_replica_batch_size are mutually exclusive.",
            hint="Give one of them.",
        )
    size = each * replicas if each is not None else PER_REPLICA_BATCH_SIZE * replicas
    size = total if total is not None else size
    if size < 1 or size % replicas:
        near = max(1, round(size / replicas)) * replicas
        raise InvalidInputError(
            f"A batch of {size} is not divisible by {replicas} replicas.",
            hint=f"batch_size={near}",
        )
    return size
