"""Recognize the platform: one function per runtime, which returns its evidence."""

from dataclasses import dataclass

from tpuctl.hardware.compute_engine import is_tpu_machine
from tpuctl.runtime.chips import TPU_ENV_FILE, Chips, Gpus
from tpuctl.runtime.machine import Machine, in_container, is_true, variable
from tpuctl.runtime.topology import Topology, worker_from_host_name

_NOTEBOOKS = (
    ("sagemaker", ("SM_TRAINING_ENV", "SM_CURRENT_HOST")),
    ("databricks", ("DATABRICKS_RUNTIME_VERSION",)),
    ("cloud-shell", ("CLOUD_SHELL", "DEVSHELL_PROJECT_ID")),
)
_PAPERSPACE = ("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_NOTEBOOK_ID", "PAPERSPACE_CLUSTER_ID")
_REMOTE = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR", "TPU_NAME", "TPU_CONFIG")
_VERTEX_JOB = ("CLOUD_ML_JOB_ID", "AIP_MODE")
_VERTEX = {"COLAB_ENTERPRISE": "colab-enterprise", "WORKBENCH_INSTANCE": "vertex-workbench"}


@dataclass(frozen=True)
class ProbeInput:
    """What a probe can use: the machine and the accelerators found in it."""

    machine: Machine
    chips: Chips
    gpus: Gpus
    topology: Topology


@dataclass(frozen=True)
class Platform:
    """A runtime and its evidence; `remote` is the address of a TPU on another machine."""

    runtime: str
    because: tuple[str, ...]
    remote: str | None = None
    sure: bool = True


def find_platform(given: ProbeInput) -> Platform:
    """Return the platform of the first probe that recognizes it."""
    # The order matters: Kaggle's images are built from Colab's and share its variables.
    probes = (
        probe_kaggle,
        probe_vertex,
        probe_colab,
        probe_gke,
        probe_notebooks,
        probe_cloud_tpu,
        probe_legacy_node,
        probe_gce,
    )
    found = (probe(given) for probe in probes)
    return next((platform for platform in found if platform), None) or workstation(given)


def probe_kaggle(given: ProbeInput) -> Platform | None:
    """Recognize Kaggle by two variables, because other tools set the first one too."""
    machine = given.machine
    kind = variable(machine, "KAGGLE_KERNEL_RUN_TYPE")
    proxy = variable(machine, "KAGGLE_DATA_PROXY_URL")
    working = machine.is_dir("/kaggle/working")
    # A shell over SSH lacks the notebook's variables, but is in the same container.
    shell = working and machine.is_dir("/kaggle/input") and in_container(machine)
    if not (kind and (proxy or working)) and not shell:
        return None
    second = "KAGGLE_DATA_PROXY_URL is set" if proxy else "/kaggle/working exists"
    because = (f"KAGGLE_KERNEL_RUN_TYPE={kind}" if kind else "/kaggle/input exists", second)
    if given.chips.count:
        return Platform("kaggle-tpu-vm", because)
    if is_true(machine, "ISTPUVM"):
        return Platform("kaggle-tpu-vm", (*because, "ISTPUVM is set, but it has no chip"))
    if named := remote_tpu(machine):
        return Platform("legacy-tpu-node", because, remote=named[1])
    return Platform("kaggle-gpu" if given.gpus.present else "kaggle-cpu", because)


def probe_vertex(given: ProbeInput) -> Platform | None:
    """Recognize Vertex AI: Colab Enterprise, Workbench, and containers of jobs and models.

    The containers have no name of their own: Google runs them on its TPU VMs and other VMs.
    """
    machine = given.machine
    product = variable(machine, "VERTEX_PRODUCT")
    if runtime := _VERTEX.get(product.upper()):
        return Platform(runtime, (f"VERTEX_PRODUCT={product}",))
    mark = next((name for name in _VERTEX_JOB if variable(machine, name)), None)
    if mark is None and "workerpool" in variable(machine, "CLUSTER_SPEC"):
        mark = "CLUSTER_SPEC"
    if mark is None:
        return None
    because = (f"{mark} is set: a container of Vertex AI",)
    return Platform(_tpu_vm(given) if given.chips.count else "gce-vm", because)


def probe_colab(given: ProbeInput) -> Platform | None:
    """Recognize the runtimes of hosted Colab."""
    machine = given.machine
    mark = _colab_evidence(given)
    if mark is None:
        return None
    if given.chips.count:
        return Platform("colab-tpu-vm", (mark,))
    name, address = remote_tpu(machine) or ("", "")
    if ":" in address:
        return Platform("colab-legacy-tpu-node", (mark, f"{name}={address}"), remote=address)
    if variable(machine, "COLAB_TPU_1VM") == "1":
        return Platform("colab-tpu-vm", (mark, "COLAB_TPU_1VM=1, but it has no chip"))
    return Platform("colab-gpu" if given.gpus.present else "colab-cpu", (mark,))


def _colab_evidence(given: ProbeInput) -> str | None:
    machine = given.machine
    if machine.exists("/var/colab/hostname"):
        return "/var/colab/hostname exists"
    if variable(machine, "TBE_RUNTIME_ADDR"):
        return "TBE_RUNTIME_ADDR is set"
    if variable(machine, "COLAB_RELEASE_TAG") and variable(machine, "COLAB_JUPYTER_IP"):
        return f"COLAB_RELEASE_TAG={variable(machine, 'COLAB_RELEASE_TAG')}"
    return None


def probe_gke(given: ProbeInput) -> Platform | None:
    """Recognize a Kubernetes pod, with or without a TPU slice."""
    machine = given.machine
    if not variable(machine, "KUBERNETES_SERVICE_HOST"):
        return None
    because = ("KUBERNETES_SERVICE_HOST is set",)
    marks = ("TPU_WORKER_HOSTNAMES", "TPU_TOPOLOGY")
    if given.chips.count:
        return Platform("gke-tpu-pod", because)
    if named := [name for name in marks if variable(machine, name)]:
        return Platform("gke-tpu-pod", (*because, f"{named[0]} is set, but it has no chip"))
    address = (remote_tpu(machine) or ("", ""))[1]
    return Platform("gke-pod", because, remote=address if ":" in address else None)


def probe_notebooks(given: ProbeInput) -> Platform | None:
    """Recognize notebook services without TPUs."""
    if given.chips.count:
        return None
    for runtime, names in _NOTEBOOKS:
        for name in names:
            if variable(given.machine, name).lower() not in ("", "0", "false"):
                return Platform(runtime, (f"{name} is set",))
    return None


def probe_cloud_tpu(given: ProbeInput) -> Platform | None:
    """Recognize a TPU VM by its chips; without other evidence it is not sure."""
    marks = _tpu_vm_evidence(given)
    if given.chips.count == 0:
        # A host whose chips failed still has the metadata of a TPU worker.
        named = [mark for mark in marks if mark.startswith("metadata")]
        return Platform("cloud-tpu-vm", (*named, "but it has no chip")) if named else None
    because = marks or ("TPU chips, but nothing names the platform",)
    if container := in_container(given.machine):
        return Platform("docker-on-tpu-vm", (*because, container), sure=bool(marks))
    return Platform(_tpu_vm(given), because, sure=bool(marks))


def _tpu_vm(given: ProbeInput) -> str:
    several = max(given.topology.hosts, given.topology.slice_hosts) > 1
    return "cloud-tpu-pod-worker" if several else "cloud-tpu-vm"


def _tpu_vm_evidence(given: ProbeInput) -> tuple[str, ...]:
    machine = given.machine
    marks = [
        f"metadata has {key}"
        for key in ("agent-worker-number", "tpu-env")
        if machine.metadata(f"instance/attributes/{key}") is not None
    ]
    machine_type = (machine.metadata("instance/machine-type") or "").rpartition("/")[2]
    if is_tpu_machine(machine_type):
        marks.append(f"metadata says machine type {machine_type}")
    if machine.read(TPU_ENV_FILE):
        marks.append(f"{TPU_ENV_FILE} exists")
    if worker_from_host_name(machine) is not None:
        marks.append("the host name is a TPU worker's")
    return tuple(marks)


def probe_legacy_node(given: ProbeInput) -> Platform | None:
    """Recognize a machine without chips that names a remote TPU."""
    named = remote_tpu(given.machine)
    if given.chips.count or named is None:
        return None
    # Elsewhere TPU_NAME is for gcloud: only a VM of Google Cloud could reach a node by its name.
    if named[0] == "TPU_NAME" and ":" not in named[1] and not _in_google_cloud(given):
        return None
    because = (f"{named[0]}={named[1]}", "no chip on this machine")
    return Platform("legacy-tpu-node", because, remote=named[1])


def _in_google_cloud(given: ProbeInput) -> bool:
    return given.machine.metadata_answers or probe_gce(given) is not None


def probe_gce(given: ProbeInput) -> Platform | None:
    """Recognize a Compute Engine VM; Chromebooks also have Google as vendor."""
    machine = given.machine
    product = (machine.read("/sys/class/dmi/id/product_name") or "").strip()
    vendor = (machine.read("/sys/class/dmi/id/sys_vendor") or "").strip()
    if "Google" in product:
        return Platform("gce-vm", (f"DMI product name: {product}",))
    if "Google" in vendor and (not product or machine.metadata_answers):
        return Platform("gce-vm", (f"DMI vendor: {vendor}",))
    return None


def workstation(given: ProbeInput) -> Platform:
    """Return the fallback: a machine without evidence of a platform."""
    machine = given.machine
    if named := [name for name in _PAPERSPACE if variable(machine, name)]:
        return Platform("workstation", (f"{named[0]} is set: Paperspace",))
    if tpu := remote_tpu(machine):
        why = f"{tpu[0]}={tpu[1]} names a TPU, but this is not a VM of Google Cloud"
        return Platform("workstation", (why,))
    if variable(machine, "COLAB_RELEASE_TAG"):
        return Platform("workstation", ("Colab's public image, run outside Colab",))
    return Platform("workstation", ("no evidence of a hosted runtime",))


def remote_tpu(machine: Machine) -> tuple[str, str] | None:
    """Return the variable that names a remote TPU, and its address; `local` does not count."""
    named = [(name, variable(machine, name)) for name in _REMOTE]
    # torch_xla's form is tpu_worker;0;10.0.0.2:8470; on a TPU VM it is a localservice.
    worker, _, address = variable(machine, "XRT_TPU_CONFIG").partition("|")[0].rpartition(";")
    if "tpu_worker" in worker:
        named.append(("XRT_TPU_CONFIG", address))
    return next((pair for pair in named if pair[1].lower() not in ("", "local")), None)
