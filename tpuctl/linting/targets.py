"""The runtime that a program is meant for, and the code that starts a framework there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.hardware.types import describe
from tpuctl.training.choose import Situation, choose_keras, choose_strategy
from tpuctl.training.snippets import DATA_PARALLEL

_JAX = Situation(accelerator="tpu", devices=8, jax_build="tpu", has_keras_3=True)
_ALL = replace(_JAX, torch_build="cpu", has_torch_xla=True)
_VM = replace(_ALL, tensorflow_build="tpu")
_NAMED = {
    "colab-tpu-vm": replace(_ALL, runtime="colab-tpu-vm", devices=1),
    "kaggle-tpu-vm": replace(
        _ALL, runtime="kaggle-tpu-vm", tensorflow_build="cpu", stray_process_addresses=True
    ),
    "cloud-tpu-vm": replace(_VM, runtime="cloud-tpu-vm"),
    "cloud-tpu-pod-worker": replace(_VM, runtime="cloud-tpu-pod-worker", hosts=2),
    "gke-tpu-pod": replace(_ALL, runtime="gke-tpu-pod", hosts=2),
    "workstation": Situation(
        tensorflow_build="cpu", jax_build="cpu", torch_build="cpu", has_keras_3=True
    ),
}
_SHORT = {
    "colab": "colab-tpu-vm",
    "kaggle": "kaggle-tpu-vm",
    "tpu-vm": "cloud-tpu-vm",
    "pod": "cloud-tpu-pod-worker",
    "gke": "gke-tpu-pod",
    "cpu": "workstation",
}
UNKNOWN = "any TPU"
# The first generation with a matrix unit of 256 x 256 (Cloud TPU documentation, v6e).
_WIDE = ("v6e", "tpu7x", "tpu8i", "tpu8t")


@dataclass(frozen=True)
class Target:
    """A runtime, how it was chosen, and what is there."""

    name: str
    situation: Situation
    because: str
    generation: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the runtime was named or detected, so that code is meant for a TPU."""
        return self.name != UNKNOWN and self.situation.accelerator == "tpu"

    @property
    def is_hosted(self) -> bool:
        """Whether this is a notebook service, whose images do not train on a TPU with TF."""
        return self.name.startswith(("colab", "kaggle"))

    @property
    def runs_tensorflow(self) -> bool:
        """Whether a TensorFlow that drives the TPU is available there."""
        return self.situation.tensorflow_build == "tpu"

    @property
    def width(self) -> int:
        """Side of the matrix unit; 128 where the generation is not known."""
        return 256 if self.generation in _WIDE else 128

    def code(self, framework: str) -> str:
        """Return the code that starts a framework there."""
        if framework == "keras":
            return choose_keras(replace(self.situation, tensorflow_build=None)).snippet
        if framework == "tensorflow" and not self.runs_tensorflow:
            return self.code("keras")
        return choose_strategy(framework, self.situation).snippet

    @property
    def keras_distribution(self) -> str:
        """The lines that make Keras use every device; they do no harm on a single one."""
        several = self.situation.several_hosts
        return "keras.distribution.initialize()\n" * several + DATA_PARALLEL


def target(name: str | None) -> Target:
    """Find the runtime by name, such as colab or kaggle:v5e-8; by default the one we run on.

    Raises UsageError for a name that is not known.
    """
    if name is None:
        return _detected()
    short, _, accelerator_type = name.strip().lower().partition(":")
    full = _SHORT.get(short, short)
    if full not in _NAMED:
        raise UsageError(
            f"--runtime: unknown runtime {name!r}.",
            hint=f"Use one of {', '.join((*_SHORT, *_NAMED))}; a type may follow: colab:v6e-1",
        )
    found = Target(full, _NAMED[full], f"--runtime {name}")
    if not accelerator_type:
        return found
    facts = describe(accelerator_type)
    situation = replace(found.situation, devices=facts.devices, hosts=facts.workers)
    return replace(found, situation=situation, generation=facts.generation)


def _detected() -> Target:
    """Ask the machine, as doctor does; a machine without a TPU says nothing about the target."""
    from tpuctl.diagnosis.diagnose import situation
    from tpuctl.diagnosis.report import MachineView
    from tpuctl.runtime.detect import detect
    from tpuctl.runtime.live import live_machine

    machine = live_machine()
    found = detect(machine)
    if found.accelerator != "tpu":
        return Target(UNKNOWN, _ALL, f"no --runtime given, and no TPU here ({found.runtime})")
    there = situation(MachineView(machine, found))
    return Target(found.runtime, there, "this machine", found.generation)


def own_target(metadata: Mapping[str, Any] | None, default: Target) -> Target:
    """Return the hosted TPU that a notebook's file asks for, where no runtime is known."""
    if default.name != UNKNOWN or not metadata:
        return default
    kaggle = metadata.get("kaggle")
    asked = kaggle.get("accelerator") if isinstance(kaggle, Mapping) else None
    if isinstance(asked, str) and asked.startswith("tpu"):
        return replace(target("kaggle"), because="the notebook's file")
    if metadata.get("accelerator") == "TPU" and "colab" in metadata:
        return replace(target("colab"), because="the notebook's file")
    return default
