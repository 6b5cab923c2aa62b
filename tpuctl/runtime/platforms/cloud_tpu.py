"""Cloud TPU VMs: one host, a worker of a slice, or a container on either."""

from tpuctl.runtime.machine import in_container
from tpuctl.runtime.platforms.scene import Platform, Scene
from tpuctl.runtime.topology import worker_from_host_name
from tpuctl.runtime.tpu_env import FILE


def probe(scene: Scene) -> Platform | None:
    """Recognise a TPU VM: chips and Google's word for it, or chips alone with less certainty."""
    marks = _marks(scene)
    if scene.chips.count == 0:
        # A host whose chips have fallen off the bus is still told that it is a TPU worker.
        told = [mark for mark in marks if mark.startswith("metadata")]
        return Platform("cloud-tpu-vm", (*told, "but there is no chip")) if told else None
    because = marks or ("TPU chips, and nothing that names the platform",)
    if container := in_container(scene.machine):
        return Platform("docker-on-tpu-vm", (*because, container), sure=bool(marks))
    several = scene.topology.hosts > 1
    name = "cloud-tpu-pod-worker" if several else "cloud-tpu-vm"
    return Platform(name, because, sure=bool(marks))


def _marks(scene: Scene) -> tuple[str, ...]:
    machine = scene.machine
    marks = [
        f"metadata has {key}"
        for key in ("agent-worker-number", "tpu-env")
        if machine.metadata(f"instance/attributes/{key}") is not None
    ]
    if machine.read(FILE):
        marks.append(f"{FILE} exists")
    if worker_from_host_name(machine) is not None:
        marks.append("the host name is a TPU worker's")
    return tuple(marks)
