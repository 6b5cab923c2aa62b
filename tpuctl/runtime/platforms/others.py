"""Everything that is neither Colab, Kaggle, a pod nor a TPU VM."""

from tpuctl.runtime.machine import Machine, variable
from tpuctl.runtime.platforms.scene import Platform, Scene

_NOTEBOOKS = (
    ("sagemaker", ("SM_TRAINING_ENV", "SM_CURRENT_HOST")),
    ("databricks", ("DATABRICKS_RUNTIME_VERSION",)),
    ("cloud-shell", ("CLOUD_SHELL", "DEVSHELL_PROJECT_ID")),
)
_PAPERSPACE = ("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_NOTEBOOK_ID", "PAPERSPACE_CLUSTER_ID")
_REMOTE = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")


def probe_notebooks(scene: Scene) -> Platform | None:
    """Recognise the platforms that never have a Google TPU."""
    if scene.chips.count:
        return None
    for runtime, names in _NOTEBOOKS:
        for name in names:
            if variable(scene.machine, name).lower() not in ("", "0", "false"):
                return Platform(runtime, (f"{name} is set",))
    return None


def probe_legacy_node(scene: Scene) -> Platform | None:
    """Recognise a machine that names a TPU elsewhere and has none itself."""
    address = remote_address(scene.machine)
    if scene.chips.count or address is None:
        return None
    name = next(name for name in _REMOTE if _names_a_tpu(scene.machine, name))
    return Platform("legacy-tpu-node", (f"{name}={address}", "no chip here"), remote=address)


def probe_gce(scene: Scene) -> Platform | None:
    """Recognise a virtual machine of Google: a Chromebook's maker is Google as well."""
    machine = scene.machine
    product = (machine.read("/sys/class/dmi/id/product_name") or "").strip()
    vendor = (machine.read("/sys/class/dmi/id/sys_vendor") or "").strip()
    if "Google" in product:
        return Platform("gce-vm", (f"DMI product name: {product}",))
    if "Google" in vendor and (not product or machine.metadata_answers):
        return Platform("gce-vm", (f"DMI vendor: {vendor}",))
    return None


def workstation(scene: Scene) -> Platform:
    """What is left: somebody's own machine."""
    machine = scene.machine
    if named := [name for name in _PAPERSPACE if variable(machine, name)]:
        return Platform("workstation", (f"{named[0]} is set: Paperspace",))
    if variable(machine, "COLAB_RELEASE_TAG"):
        return Platform("workstation", ("Colab's public image, run outside Colab",))
    return Platform("workstation", ("no mark of a hosted runtime",))


def remote_address(machine: Machine) -> str | None:
    """The TPU that the environment names; `local` is none."""
    found = (variable(machine, name) for name in _REMOTE if _names_a_tpu(machine, name))
    return next(found, None)


def _names_a_tpu(machine: Machine, name: str) -> bool:
    return variable(machine, name).lower() not in ("", "local")
