"""What a platform's probe gets to see, and what it answers."""

from dataclasses import dataclass

from tpuctl.runtime.chips import FILE, Chips, Gpus
from tpuctl.runtime.machine import Machine, in_container, is_true, variable
from tpuctl.runtime.topology import Topology, worker_from_host_name


@dataclass(frozen=True)
class Surroundings:
    """A machine together with the accelerators that were found in it."""

    machine: Machine
    chips: Chips
    gpus: Gpus
    topology: Topology


@dataclass(frozen=True)
class Platform:
    """A runtime, and what shows that it is this one."""

    runtime: str
    because: tuple[str, ...]
    remote: str | None = None
    sure: bool = True


def probe_cloud_tpu(scene: Surroundings) -> Platform | None:
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


def _marks(scene: Surroundings) -> tuple[str, ...]:
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


_VERTEX = {"COLAB_ENTERPRISE": "colab-enterprise", "WORKBENCH_INSTANCE": "vertex-workbench"}


def probe_enterprise(scene: Surroundings) -> Platform | None:
    """Recognise Colab Enterprise and Vertex Workbench."""
    product = variable(scene.machine, "VERTEX_PRODUCT")
    runtime = _VERTEX.get(product.upper())
    return Platform(runtime, (f"VERTEX_PRODUCT={product}",)) if runtime else None


def probe_colab(scene: Surroundings) -> Platform | None:
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


def _hosted(scene: Surroundings) -> str | None:
    machine = scene.machine
    if machine.exists("/var/colab/hostname"):
        return "/var/colab/hostname exists"
    if variable(machine, "TBE_RUNTIME_ADDR"):
        return "TBE_RUNTIME_ADDR is set"
    if variable(machine, "COLAB_RELEASE_TAG") and variable(machine, "COLAB_JUPYTER_IP"):
        return f"COLAB_RELEASE_TAG={variable(machine, 'COLAB_RELEASE_TAG')}"
    return None


def probe_gke(scene: Surroundings) -> Platform | None:
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


def probe_kaggle(scene: Surroundings) -> Platform | None:
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


_NOTEBOOKS = (
    ("sagemaker", ("SM_TRAINING_ENV", "SM_CURRENT_HOST")),
    ("databricks", ("DATABRICKS_RUNTIME_VERSION",)),
    ("cloud-shell", ("CLOUD_SHELL", "DEVSHELL_PROJECT_ID")),
)
_PAPERSPACE = ("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_NOTEBOOK_ID", "PAPERSPACE_CLUSTER_ID")
_REMOTE = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")


def probe_notebooks(scene: Surroundings) -> Platform | None:
    """Recognise the platforms that never have a Google TPU."""
    if scene.chips.count:
        return None
    for runtime, names in _NOTEBOOKS:
        for name in names:
            if variable(scene.machine, name).lower() not in ("", "0", "false"):
                return Platform(runtime, (f"{name} is set",))
    return None


def probe_legacy_node(scene: Surroundings) -> Platform | None:
    """Recognise a machine that names a TPU elsewhere and has none itself."""
    address = remote_address(scene.machine)
    if scene.chips.count or address is None:
        return None
    name = next(name for name in _REMOTE if _names_a_tpu(scene.machine, name))
    return Platform("legacy-tpu-node", (f"{name}={address}", "no chip here"), remote=address)


def probe_gce(scene: Surroundings) -> Platform | None:
    """Recognise a virtual machine of Google: a Chromebook's maker is Google as well."""
    machine = scene.machine
    product = (machine.read("/sys/class/dmi/id/product_name") or "").strip()
    vendor = (machine.read("/sys/class/dmi/id/sys_vendor") or "").strip()
    if "Google" in product:
        return Platform("gce-vm", (f"DMI product name: {product}",))
    if "Google" in vendor and (not product or machine.metadata_answers):
        return Platform("gce-vm", (f"DMI vendor: {vendor}",))
    return None


def workstation(scene: Surroundings) -> Platform:
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


# The order matters: Kaggle's images are built from Colab's, so that Colab's marks are there too.
_PROBES = (
    probe_kaggle,
    probe_enterprise,
    probe_colab,
    probe_gke,
    probe_notebooks,
    probe_cloud_tpu,
    probe_legacy_node,
    probe_gce,
)


def find_platform(scene: Surroundings) -> Platform:
    """Name the runtime: the first probe that recognises it."""
    for probe in _PROBES:
        if platform := probe(scene):
            return platform
    return workstation(scene)
