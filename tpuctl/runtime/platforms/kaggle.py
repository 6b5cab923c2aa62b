"""Kaggle's notebooks."""

from tpuctl.runtime.machine import is_true, variable
from tpuctl.runtime.platforms.others import remote_address
from tpuctl.runtime.platforms.scene import Platform, Scene


def probe(scene: Scene) -> Platform | None:
    """Recognise Kaggle by two marks: other tools set the first one elsewhere too."""
    machine = scene.machine
    kind = variable(machine, "KAGGLE_KERNEL_RUN_TYPE")
    proxy = variable(machine, "KAGGLE_DATA_PROXY_URL")
    if not kind or not (proxy or machine.is_dir("/kaggle/working")):
        return None
    second = "KAGGLE_DATA_PROXY_URL is set" if proxy else "/kaggle/working is there"
    because = (f"KAGGLE_KERNEL_RUN_TYPE={kind}", second)
    if scene.chips.count:
        return Platform("kaggle-tpu-vm", because)
    if is_true(machine, "ISTPUVM"):
        return Platform("kaggle-tpu-vm", (*because, "ISTPUVM is set, but there is no chip"))
    if address := remote_address(machine):
        return Platform("legacy-tpu-node", because, remote=address)
    return Platform("kaggle-gpu" if scene.gpus.count else "kaggle-cpu", because)
