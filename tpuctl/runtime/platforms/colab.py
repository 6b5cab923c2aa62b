"""Colab: hosted, Enterprise, and the public image run elsewhere."""

from tpuctl.runtime.machine import variable
from tpuctl.runtime.platforms.scene import Platform, Scene

_VERTEX = {"COLAB_ENTERPRISE": "colab-enterprise", "WORKBENCH_INSTANCE": "vertex-workbench"}


def probe_enterprise(scene: Scene) -> Platform | None:
    """Recognise Colab Enterprise and Vertex Workbench."""
    product = variable(scene.machine, "VERTEX_PRODUCT")
    runtime = _VERTEX.get(product.upper())
    return Platform(runtime, (f"VERTEX_PRODUCT={product}",)) if runtime else None


def probe(scene: Scene) -> Platform | None:
    """Recognise hosted Colab and which of its runtimes this is."""
    machine = scene.machine
    mark = _hosted(scene)
    if mark is None:
        return None
    if scene.chips.count:
        return Platform("colab-tpu-vm", (mark,))
    if address := variable(machine, "COLAB_TPU_ADDR"):
        return Platform(
            "colab-legacy-tpu-node", (mark, f"COLAB_TPU_ADDR={address}"), remote=address
        )
    if variable(machine, "COLAB_TPU_1VM") == "1":
        return Platform("colab-tpu-vm", (mark, "COLAB_TPU_1VM=1, but there is no chip"))
    return Platform("colab-gpu" if scene.gpus.count else "colab-cpu", (mark,))


def _hosted(scene: Scene) -> str | None:
    machine = scene.machine
    if machine.exists("/var/colab/hostname"):
        return "/var/colab/hostname exists"
    if variable(machine, "TBE_RUNTIME_ADDR"):
        return "TBE_RUNTIME_ADDR is set"
    if variable(machine, "COLAB_RELEASE_TAG") and variable(machine, "COLAB_JUPYTER_IP"):
        return f"COLAB_RELEASE_TAG={variable(machine, 'COLAB_RELEASE_TAG')}"
    return None
