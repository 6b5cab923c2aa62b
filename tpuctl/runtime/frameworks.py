"""Find the installed frameworks, and which accelerators each of them was built for."""

from dataclasses import dataclass

from tpuctl.runtime.chips import tpu_env
from tpuctl.runtime.machine import Machine
from tpuctl.runtime.versions import image_tensorflow_is_for_tpu, parse

TENSORFLOW_DISTS = (
    "tensorflow-tpu",
    "tf-nightly-tpu",
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tf-nightly-cpu",
    "intel-tensorflow",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "tensorflow-macos",
    "tensorflow-aarch64",
    "tensorflow-cpu-aws",
)
_TPU_BUILDS = ("tensorflow-tpu", "tf-nightly-tpu")
_CPU_BUILDS = ("tensorflow-cpu", "tf-nightly-cpu", "intel-tensorflow", "tensorflow-cpu-aws")
LIBTPU_DISTS = ("libtpu", "libtpu-nightly", "libtpu-lts")
_JAX_PLUGINS = ("jax-cuda", "jax-rocm", "jax-metal", "jax-oneapi", "intel-extension-for-openxla")
_TF_LIBRARIES = ("/lib/libtpu.so", "/usr/lib/libtpu.so")


@dataclass(frozen=True)
class Frameworks:
    """The installed frameworks; a build is what a framework can use: `tpu`, `gpu` or `cpu`."""

    tensorflow: str | None = None
    tensorflow_build: str | None = None
    tensorflow_dist: str | None = None
    jax: str | None = None
    jax_build: str | None = None
    torch: str | None = None
    torch_build: str | None = None
    torch_xla: str | None = None
    torch_tpu: str | None = None
    keras: str | None = None
    libtpu: str | None = None
    because: tuple[str, ...] = ()

    @property
    def is_keras_3(self) -> bool:
        """Whether Keras is version 3, which runs on any of the frameworks."""
        return self.keras is not None and parse(self.keras).major >= 3


def find_frameworks(machine: Machine, runtime: str, *, has_chips: bool) -> Frameworks:
    """Read the versions of the installed distributions, without importing any of them."""
    packages = machine.packages
    dist = next((name for name in TENSORFLOW_DISTS if name in packages), None)
    build, why = _tensorflow_build(machine, runtime, dist, has_chips=has_chips)
    libtpu = next((packages[name] for name in LIBTPU_DISTS if name in packages), None)
    torch = packages.get("torch")
    return Frameworks(
        tensorflow=packages[dist] if dist else None,
        tensorflow_build=build,
        tensorflow_dist=dist,
        jax=packages.get("jax"),
        jax_build=_jax_build(machine, has_chips=has_chips),
        torch=torch,
        torch_build=_torch_build(machine, torch) if torch else None,
        torch_xla=packages.get("torch-xla") if torch else None,
        torch_tpu=packages.get("torch-tpu") if torch else None,
        keras=packages.get("keras"),
        libtpu=libtpu,
        because=(why,) if why else (),
    )


def _tensorflow_build(
    machine: Machine, runtime: str, dist: str | None, *, has_chips: bool
) -> tuple[str | None, str | None]:
    if dist is None:
        return None, "no distribution of TensorFlow is installed"
    if dist in _TPU_BUILDS:
        return "tpu", f"{dist} is built for TPUs"
    if dist in _CPU_BUILDS:
        return "cpu", f"{dist} is built for CPUs only"
    if has_chips and (why := _tpu_build_evidence(machine, runtime, machine.packages[dist])):
        return "tpu", why
    return "gpu", f"{dist} from the package index has no TPU support"


def _tpu_build_evidence(machine: Machine, runtime: str, version: str) -> str | None:
    """Return the evidence that a distribution called plain `tensorflow` is a TPU build."""
    image = tpu_env(machine).get("RUNTIME_VERSION", "")
    if image.startswith("tpu-vm-tf-"):
        return f"the image is {image}"
    libtpu = machine.packages.get("libtpu", "")
    if libtpu.startswith(("1.", "2.")):
        return f"libtpu {libtpu} has TensorFlow's numbering"
    if image_tensorflow_is_for_tpu(runtime, version):
        return f"TensorFlow {version} came with this runtime's TPU image"
    for path in _TF_LIBRARIES:
        if machine.exists(path):
            return f"{path} is there"
    return None


def _torch_build(machine: Machine, version: str) -> str:
    # "gpu" means the CUDA interface, which PyTorch for Macs and for Intel's GPUs lacks.
    without = "+cpu" in version or "+xpu" in version or machine.is_dir("/System/Library")
    return "cpu" if without else "gpu"


def _jax_build(machine: Machine, *, has_chips: bool) -> str | None:
    packages = machine.packages
    if "jax" not in packages:
        return None
    if has_chips:
        return "tpu"
    cuda = any(name.startswith(_JAX_PLUGINS) for name in packages)
    return "gpu" if cuda or "+cuda" in packages.get("jaxlib", "") else "cpu"
