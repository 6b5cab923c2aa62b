"""Pods on Kubernetes."""

from tpuctl.runtime.machine import variable
from tpuctl.runtime.platforms.scene import Platform, Scene


def probe(scene: Scene) -> Platform | None:
    """Recognise a pod, and whether a TPU slice belongs to it."""
    machine = scene.machine
    if not variable(machine, "KUBERNETES_SERVICE_HOST"):
        return None
    because = ("KUBERNETES_SERVICE_HOST is set",)
    marks = ("TPU_WORKER_HOSTNAMES", "TPU_TOPOLOGY")
    if scene.chips.count:
        return Platform("gke-tpu-pod", because)
    if named := [name for name in marks if variable(machine, name)]:
        return Platform("gke-tpu-pod", (*because, f"{named[0]} is set, but there is no chip"))
    endpoint = variable(machine, "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
    return Platform("gke-pod", because, remote=endpoint or None)
