"""Checks of environment variables and of the metadata server."""

import re

from tpuctl.diagnosis.report import Finding, MachineView, found
from tpuctl.runtime.chips import tpu_env
from tpuctl.runtime.topology import product
from tpuctl.runtime.versions import parse

# The expression from torch_xla/_internal/tpu.py, unchanged, because it decides what is accepted.
_TORCH_XLA_TYPE = re.compile(r"^(?:v|tpu)(\d)([A-Za-z]?){7}-(\d+)$")
_OLD_PRECISION = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_FP16", "XLA_DOWNCAST_FP16")


def platforms_contradict(view: MachineView) -> Finding | None:
    """F16: JAX_PLATFORMS contradicts the hardware."""
    wanted = [word.strip() for word in view.value("JAX_PLATFORMS").lower().split(",") if word]
    if not wanted or not view.has("jax"):
        return None
    if has_pathways(view):
        if view.has("pathwaysutils"):
            return None
        return Finding(
            (view.shown("JAX_PLATFORMS"), "pathwaysutils is not installed"),
            summary="Pathways needs the package pathwaysutils",
            fix="Install it, and call pathwaysutils.initialize() before using JAX.",
            fix_command="pip install pathwaysutils",
        )
    if "tpu" in wanted and not view.on_tpu:
        return found(view.shown("JAX_PLATFORMS"), *view.detected.chips.because)
    if "tpu" not in wanted and view.on_tpu:
        return found(
            view.shown("JAX_PLATFORMS"), f"this machine has {view.detected.chips.count} TPU chip(s)"
        )
    return None


def keras_on_cpu(view: MachineView) -> Finding | None:
    """F35: Keras is configured for a TensorFlow that cannot see the chips."""
    frameworks = view.detected.frameworks
    if not view.on_tpu or not frameworks.is_keras_3:
        return None
    if frameworks.tensorflow_build in (None, "tpu"):
        return None
    backend = view.value("KERAS_BACKEND").lower()
    if backend:
        return found(view.shown("KERAS_BACKEND")) if backend == "tensorflow" else None
    path = (view.value("KERAS_HOME") or view.value("HOME") + "/.keras") + "/keras.json"
    config = view.machine.read(path) or ""
    if re.search(r'"backend"\s*:\s*"tensorflow"', config):
        return found('~/.keras/keras.json says "backend": "tensorflow"')
    return None


def library_path_missing(view: MachineView) -> Finding | None:
    """F36: TPU_LIBRARY_PATH does not name a file."""
    path = view.value("TPU_LIBRARY_PATH")
    if not path or (view.machine.exists(path) and not view.machine.is_dir(path)):
        return None
    return found(view.shown("TPU_LIBRARY_PATH"), "the file does not exist")


def old_tpu_driver(view: MachineView) -> Finding | None:
    """F42: JAX is configured for the driver of remote TPU nodes."""
    if view.value("JAX_XLA_BACKEND") == "tpu_driver":
        return found(view.shown("JAX_XLA_BACKEND"))
    # Pathways uses the same variable for the address of its proxy.
    if view.value("JAX_BACKEND_TARGET").startswith("grpc://") and not has_pathways(view):
        return found(view.shown("JAX_BACKEND_TARGET"))
    return None


def metadata_silent(view: MachineView) -> Finding | None:
    """F43: chips, a silent metadata server, and no setting that skips the query."""
    if not view.on_tpu or view.machine.metadata_answers or view.is_true("TPU_SKIP_MDS_QUERY"):
        return None
    return found("the metadata server does not answer", "TPU_SKIP_MDS_QUERY is not set")


def torch_xla_without_metadata(view: MachineView) -> Finding | None:
    """F44: like F43, with torch_xla, which queries it on import."""
    return metadata_silent(view) if view.has("torch-xla") else None


def bounds_missing(view: MachineView) -> Finding | None:
    """F45: torch_xla must not query the bounds, and they are not set."""
    names = ("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")
    missing = [name for name in names if not view.value(name)]
    if not view.on_tpu or not view.has("torch-xla") or not missing:
        return None
    if not view.is_true("TPU_SKIP_MDS_QUERY"):
        return None
    return found(view.shown("TPU_SKIP_MDS_QUERY"), f"not set: {', '.join(missing)}")


def type_missing(view: MachineView) -> Finding | None:
    """`tpu_env_keys`: torch_xla reads the accelerator type from tpu-env, which has none."""
    known = tpu_env(view.machine)
    if not view.on_tpu or not view.has("torch-xla") or view.is_true("TPU_SKIP_MDS_QUERY"):
        return None
    if not known or "ACCELERATOR_TYPE" in known:
        return None
    return found("tpu-env has no ACCELERATOR_TYPE", "TPU_SKIP_MDS_QUERY is not set")


def type_unreadable(view: MachineView) -> Finding | None:
    """F46: an accelerator type that torch_xla cannot parse."""
    value = view.value("TPU_ACCELERATOR_TYPE")
    if not view.on_tpu or not view.has("torch-xla") or not value:
        return None
    return None if _TORCH_XLA_TYPE.match(value) else found(view.shown("TPU_ACCELERATOR_TYPE"))


def hostnames_are_a_sentence(view: MachineView) -> Finding | None:
    """F47: a warning text where host names should be."""
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ADDRS"):
        value = view.value(name)
        if "WARNING" in value or re.search(r"[^,]\s+[^,\s]", value):
            return found(view.shown(name))
    return None


def no_google_client(view: MachineView) -> Finding | None:
    """F48: TPU_NAME is set, and TensorFlow has no client to look it up."""
    name = view.value("TPU_NAME")
    if not view.detected.frameworks.tensorflow or view.has("google-api-python-client"):
        return None
    if not view.on_tpu and not view.detected.platform.remote:
        return None
    # On a single TPU host the TPU is found without its name.
    alone = view.on_tpu and view.detected.topology.hosts == 1
    if alone or not name or name == "local" or name.startswith("grpc://"):
        return None
    if view.on_tpu and view.detected.frameworks.tensorflow_build != "tpu":
        return None
    return found(view.shown("TPU_NAME"), "google-api-python-client is not installed")


def preempted(view: MachineView) -> Finding | None:
    """F49: the metadata server says that this TPU is preempted."""
    if (view.machine.metadata("instance/preempted") or "").strip().upper() == "TRUE":
        return found("metadata instance/preempted is TRUE")
    return None


def name_is_local(view: MachineView) -> Finding | None:
    """F50: TPU_NAME=local without a metadata server for zone and project."""
    if view.value("TPU_NAME").lower() != "local" or not view.detected.frameworks.tensorflow:
        return None
    if view.machine.metadata_answers:
        return None
    return found(view.shown("TPU_NAME"), "the metadata server does not answer")


def too_few_addresses(view: MachineView) -> Finding | None:
    """F53: fewer addresses than processes that torch_xla would start."""
    if not has_too_few_addresses(view) or not view.has("torch-xla"):
        return None
    return found(view.shown("TPU_PROCESS_ADDRESSES"), f"{_processes(view)} processes by the bounds")


def addresses_without_port(view: MachineView) -> Finding | None:
    """F54: the address `local`, which has no port for the metrics server."""
    if not view.on_tpu or view.value("TPU_PROCESS_ADDRESSES") != "local":
        return None
    return found(view.shown("TPU_PROCESS_ADDRESSES"))


def several_hosts(view: MachineView) -> Finding | None:
    """F55: this is one host of several."""
    place = view.detected.topology
    if not view.on_tpu or (place.hosts == 1 and place.slices == 1):
        return None
    slices = (f"{place.slices} slices",) if place.slices > 1 else ()
    alone = _why_alone(view)
    where = f"{place.hosts} hosts, this is worker {place.worker}"
    return found(where, *place.because, *slices, *([alone] if alone else []))


def _why_alone(view: MachineView) -> str | None:
    """Say why JAX would silently treat one host of a slice as the whole TPU."""
    names = view.machine.metadata("instance/attributes/worker-network-endpoints") or ""
    jax = view.detected.frameworks.jax
    # On Compute Engine they are bare names, which JAX before 0.10 splits at a colon.
    if jax is None or "," not in names or ":" in names or parse(jax) >= parse("0.10"):
        return None
    return (
        f"worker-network-endpoints has names without addresses, and JAX {jax} finds no other worker"
        " in it: every host trains alone, unless jax.distributed.initialize() is given all three"
        " arguments"
    )


def accelerate_misdirected(view: MachineView) -> Finding | None:
    """F61: PJRT_DEVICE hides the TPU from accelerate."""
    device = view.value("PJRT_DEVICE")
    if not view.on_tpu or not view.has("accelerate") or not view.has("torch-xla"):
        return None
    if not view.is_hosted or not device or device == "TPU" or view.value("TPU_NAME"):
        return None
    return found(view.shown("PJRT_DEVICE"))


def bucket_scope_missing(view: MachineView) -> Finding | None:
    """F64: the VM's scopes do not include storage."""
    scopes = view.machine.metadata("instance/service-accounts/default/scopes")
    if not view.on_tpu or not scopes:
        return None
    if "cloud-platform" in scopes or "devstorage" in scopes:
        return None
    return found("the VM's scopes contain neither cloud-platform nor devstorage")


def precision_variables(view: MachineView) -> Finding | None:
    """F69: variables that torch_xla gives up since 2.5."""
    names = [name for name in _OLD_PRECISION if view.is_true(name)]
    if not names or parse(view.version("torch-xla")) < parse("2.5"):
        return None
    return found(*(view.shown(name) for name in names))


def has_pathways(view: MachineView) -> bool:
    """Whether JAX uses the TPUs of Pathways, through its proxy on another machine or in a pod."""
    return view.has("jax") and "proxy" in view.value("JAX_PLATFORMS").lower().split(",")


def has_too_few_addresses(view: MachineView) -> bool:
    """Whether TPU_PROCESS_ADDRESSES lists fewer processes than torch_xla would start."""
    addresses = [part for part in view.value("TPU_PROCESS_ADDRESSES").split(",") if part.strip()]
    return view.on_tpu and 0 < len(addresses) < _processes(view)


def _processes(view: MachineView) -> int:
    hosts = product(view.value("TPU_HOST_BOUNDS"))
    chips = product(view.value("TPU_CHIPS_PER_HOST_BOUNDS"))
    return (hosts or 1) * (chips or view.detected.chips.count)
