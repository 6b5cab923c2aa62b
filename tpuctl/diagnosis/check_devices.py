"""Failures that the chips, their drivers and their device nodes show."""

from tpuctl.diagnosis.finding import Finding, View, found
from tpuctl.runtime.machine import in_container, whole_number
from tpuctl.runtime.versions import minor, tables

_IMAGES = {
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
_PROMISED = ("kaggle-tpu-vm", "colab-tpu-vm", "gke-tpu-pod", "cloud-tpu-vm")


def no_chip_to_open(view: View) -> Finding | None:
    """F08: chips without nodes outside a container, or a TPU runtime without chips."""
    chips = view.found.chips
    if not chips.count:
        if view.found.runtime in _PROMISED:
            return found(*view.found.platform.because, *chips.because)
        return None
    if chips.chips_with_node or _hidden_by_container(view):
        return None
    return Finding(chips.because, fix=_right_image(view))


def v6e_without_driver(view: View) -> Finding | None:
    """F09: v6e chips without a driver, or TPU_VISIBLE_CHIPS beyond the last chip."""
    chips = view.found.chips
    if chips.generation == "v6e" and not chips.driver_bound:
        return Finding(chips.because, fix=_right_image(view))
    numbers = map(whole_number, view.value("TPU_VISIBLE_CHIPS").split(","))
    beyond = [number for number in numbers if number is not None and number >= chips.count]
    if chips.count and beyond:
        return Finding(
            (view.shown("TPU_VISIBLE_CHIPS"), f"{chips.count} chip(s), counted from 0"),
            fix="Unset TPU_VISIBLE_CHIPS.",
            fix_command="unset TPU_VISIBLE_CHIPS",
        )
    return None


def v5e_without_nodes(view: View) -> Finding | None:
    """F10: v5e chips and no vfio group, which a container does not explain."""
    chips = view.found.chips
    if chips.generation != "v5e" or chips.chips_with_node or _hidden_by_container(view):
        return None
    return Finding(chips.because, fix=_right_image(view))


def vbar_out_of_reach(view: View) -> Finding | None:
    """F11: a container on v6e or newer whose VBAR service is unknown or silent."""
    container = in_container(view.machine)
    if not view.found.chips.needs("vbar") or not container:
        return None
    if not view.found.chips.chips_with_node:
        return None
    address = view.value("VBAR_CONTROL_SERVICE_URL")
    if address.startswith("unix:"):
        return None
    answers = view.machine.is_reachable(address or "[::]:8353")
    if answers or (address and answers is None):
        return None
    where = view.shown("VBAR_CONTROL_SERVICE_URL") if address else "VBAR_CONTROL_SERVICE_URL unset"
    return found(container, where, f"{address or '[::]:8353'} does not accept a connection")


def chips_kept_from_container(view: View) -> Finding | None:
    """F12: the host's chips are on the bus, and this container has no node for them."""
    chips = view.found.chips
    if not chips.count or not _hidden_by_container(view):
        return None
    missing = chips.count - chips.chips_with_node
    # A pod on a shared node rightly gets only some of the node's chips.
    if missing == 0 or (chips.chips_with_node and view.found.runtime == "gke-tpu-pod"):
        return None
    evidence = f"{missing} of {chips.count} chips have no device node here"
    return found(*chips.because, evidence, in_container(view.machine) or "")


def hugepages_off(view: View) -> Finding | None:
    """F13: JAX wants exactly `always` from v5e on."""
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    text = (view.machine.read(path) or "").strip()
    if not view.found.chips.needs("hugepages") or not text or text.startswith("[always]"):
        return None
    return found(f"{path}: {text[:60]}", severity="note" if view.is_hosted else None)


def mixed_chips(view: View) -> Finding | None:
    """F14: more than one kind of TPU on the bus."""
    kinds = view.found.chips.kinds
    return found(f"PCI devices {', '.join(kinds)}") if len(kinds) > 1 else None


def p100_without_kernels(view: View) -> Finding | None:
    """F72: a P100 with a PyTorch whose cuDNN left Pascal behind."""
    torch = view.version("torch")
    pascal = [name for name in view.found.gpus.names if "P100" in name]
    if not pascal or not torch or "+cpu" in torch:
        return None
    if minor(torch) < minor(tables()["torch_without_pascal"]):
        return None
    return found(f"GPU: {pascal[0]}", f"torch {torch}")


def _hidden_by_container(view: View) -> bool:
    return bool(in_container(view.machine)) and view.found.chips.driver_bound


def _right_image(view: View) -> str | None:
    image = _IMAGES.get(view.found.chips.generation or "")
    if image is None:
        return None
    return f"Wrong runtime version: recreate the VM with {image}."
