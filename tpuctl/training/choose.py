"""Choose the framework and strategy for a machine, with the reasons. Pure."""

from dataclasses import dataclass, field, replace

from tpuctl.training import snippets

FRAMEWORKS = ("tensorflow", "jax", "torch")
UNUSABLE = frozenset({"not-installed", "none-on-tpu"})
_ON_TPU = frozenset(
    {
        "tpu-local", "tpu-grpc", "tpu-name", "single", "mesh", "distributed+mesh", "xla-single",
        "xla-launch", "xla-launch-pop-addresses", "xla-launch-all-hosts",
        "tpu-single", "tpu-torchrun", "tpu-torchrun-all-hosts",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Situation:
    """The inputs of the choice; `*_build` is the best accelerator that a framework supports.

    `on_nodes` has the installed frameworks that can use a TPU on another machine.
    """

    accelerator: str = "none"
    runtime: str = "workstation"
    devices: int = 0
    hosts: int = 1
    slices: int = 1
    gpus: int = 0
    remote: str | None = None
    needs_pjrt_variables: bool = False
    tensorflow_build: str | None = None
    jax_build: str | None = None
    torch_build: str | None = None
    has_torch_xla: bool = False
    has_torch_tpu: bool = False
    has_keras_3: bool = False
    tensorflow_workers: int = 1
    on_nodes: frozenset[str] = frozenset()
    stray_process_addresses: bool = False
    has_pathways: bool = False

    @property
    def several_hosts(self) -> bool:
        """Whether the program must start on more than one host."""
        return self.hosts > 1 or self.slices > 1


@dataclass(frozen=True)
class Choice:
    """A framework and strategy, the reason, and code to paste into a notebook."""

    framework: str
    strategy: str
    because: str
    snippet: str = field(metadata={"lines": True})
    is_requested: bool = field(default=False, metadata={"internal": True})


def choose(situation: Situation) -> Choice:
    """Choose TensorFlow if it supports the accelerator, else the first framework that does."""
    choices = [choose_strategy(framework, situation) for framework in FRAMEWORKS]
    able = []
    if _tpu(situation):
        able = [choice for choice in choices if choice.strategy in _ON_TPU]
        if situation.torch_build is None:
            able = [choice for choice in able if choice.framework != "torch"]
    elif situation.has_pathways:
        able = [choice for choice in choices if choice.framework == "jax"]
    elif situation.accelerator == "gpu":
        builds = (situation.tensorflow_build, situation.jax_build, situation.torch_build)
        able = [choice for choice, build in zip(choices, builds, strict=True) if build == "gpu"]
    installed = [choice for choice in choices if choice.strategy not in UNUSABLE]
    best = next(iter(able + installed), None)
    if best is None:
        because = "no framework is installed"
        if situation.tensorflow_build is not None:
            because = "no installed framework supports the TPU"
        code = snippets.install_jax(situation.accelerator)
        return Choice("jax", "not-installed", because, code)
    keras = choose_keras(situation)
    is_keras = best.framework == "jax" and keras.strategy.startswith("jax-")
    if not is_keras or situation.has_pathways:
        return best
    # Keras 3 needs less code on JAX than a hand-made mesh.
    return replace(best, because=f"{best.because}; Keras 3 runs on JAX", snippet=keras.snippet)


def choose_strategy(framework: str, situation: Situation) -> Choice:
    """Choose the strategy of TensorFlow, JAX or PyTorch, with code that starts it."""
    rules = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    strategy, because = rules[framework](situation)
    code = snippets.snippet(framework, strategy, situation.remote)
    if framework == "jax" and situation.has_pathways:
        code = snippets.PATHWAYS + code
    if strategy == "tpu-local" and situation.needs_pjrt_variables:
        code = snippets.PJRT_VARIABLES + code
    return Choice(framework, strategy, because, code)


def choose_keras(situation: Situation) -> Choice:
    """Choose the backend and distribution for Keras 3."""
    if not situation.has_keras_3:
        return Choice("keras", "not-installed", "Keras 3 is not installed", "")
    if situation.tensorflow_build == "tpu" and _tpu(situation):
        below = choose_strategy("tensorflow", situation)
        return Choice("keras", "tensorflow-" + below.strategy, below.because, below.snippet)
    if situation.jax_build is None:
        strategy, because = _keras_without_jax(situation)
        return Choice("keras", strategy, because, snippets.snippet("keras", strategy, None))
    if _tpu(situation) and situation.several_hosts:
        strategy, because = "jax-distributed", f"{situation.hosts} hosts train together"
    elif situation.has_pathways or (
        max(situation.devices, situation.gpus) > 1 and situation.jax_build != "cpu"
    ):
        strategy, because = "jax-data-parallel", "several devices, one host"
    else:
        strategy, because = "jax-single", "one device"
    return Choice("keras", strategy, because, snippets.snippet("keras", strategy, None))


def _tpu(situation: Situation) -> bool:
    return situation.accelerator in ("tpu", "tpu-remote")


def _tensorflow(situation: Situation) -> tuple[str, str]:
    """TPUStrategy needs a TPU build, not just a TPU."""
    build = situation.tensorflow_build
    if build is None:
        return "not-installed", "TensorFlow is not installed"
    if situation.accelerator == "tpu-remote":
        name = situation.remote or ""
        if name.startswith("grpc://") or ":" in name or name.startswith("{"):
            return "tpu-grpc", f"the TPU is at {name}"
        return "tpu-name", f"the TPU's name is {name}"
    if situation.accelerator == "tpu":
        if build != "tpu":
            return "none-on-tpu", "this TensorFlow was built without TPU support"
        if situation.several_hosts:
            return "tpu-name", f"one worker drives all {situation.hosts} hosts by the TPU's name"
        return "tpu-local", "the chips are in this machine and TensorFlow is a TPU build"
    if situation.tensorflow_workers > 1:
        return "multiworker-mirrored", f"TF_CONFIG names {situation.tensorflow_workers} workers"
    if situation.gpus > 1 and build == "gpu":
        return "mirrored", f"{situation.gpus} GPUs in this machine"
    return "default", "one GPU" if situation.gpus == 1 and build == "gpu" else "CPU only"


def _jax(situation: Situation) -> tuple[str, str]:
    if situation.jax_build is None:
        return "not-installed", "JAX is not installed"
    if situation.has_pathways:
        return "mesh", "JAX_PLATFORMS has proxy: the devices of Pathways, from one process"
    if situation.accelerator == "tpu-remote":
        if situation.runtime == "colab-legacy-tpu-node" and "jax" in situation.on_nodes:
            return "single", "obsolete: jax.tools.colab_tpu made the node's cores local devices"
        return "cpu", "this JAX cannot use a TPU on another machine"
    if situation.accelerator == "tpu":
        if situation.several_hosts:
            return "distributed+mesh", f"{situation.hosts} hosts, each runs the program"
        if situation.devices > 1:
            return "mesh", f"{situation.devices} devices on one host"
        return "single", "one device"
    if situation.gpus and situation.jax_build == "gpu":
        if situation.hosts > max(1, situation.tensorflow_workers):
            return "distributed+mesh", f"{situation.hosts} hosts, each runs the program"
        return ("mesh" if situation.gpus > 1 else "single"), f"{situation.gpus} GPU(s)"
    return "cpu", "no accelerator that this JAX can see"


def _torch(situation: Situation) -> tuple[str, str]:
    on_colab = situation.runtime == "colab-legacy-tpu-node" and not situation.has_torch_xla
    if on_colab or (situation.accelerator == "tpu-remote" and "torch-xla" in situation.on_nodes):
        return "xla-launch", "obsolete: torch_xla before 2.1 reached a TPU on another machine"
    if situation.torch_build is None:
        return "not-installed", "PyTorch is not installed"
    if situation.accelerator == "tpu" and situation.has_torch_tpu:
        return _torch_tpu(situation)
    if situation.accelerator == "tpu" and situation.has_torch_xla:
        return _torch_xla(situation)
    if situation.gpus and situation.torch_build == "gpu":
        return ("cuda-ddp" if situation.gpus > 1 else "cuda-single"), f"{situation.gpus} GPU(s)"
    return "cpu", "no accelerator that this PyTorch can see"


def _torch_tpu(situation: Situation) -> tuple[str, str]:
    """TorchTPU starts one process per device, as torchrun does on GPUs."""
    if situation.several_hosts:
        return "tpu-torchrun-all-hosts", f"TorchTPU on {situation.hosts} hosts, each runs torchrun"
    if situation.devices == 1:
        return "tpu-single", "TorchTPU on one device"
    return "tpu-torchrun", f"TorchTPU on {situation.devices} devices of one host"


def _torch_xla(situation: Situation) -> tuple[str, str]:
    if situation.several_hosts:
        return "xla-launch-all-hosts", f"{situation.hosts} hosts, each runs the program"
    if situation.devices == 1:
        # launch() would start as many processes as the bounds say, but Colab's bounds are wrong.
        return "xla-single", "one device: a launcher would only fail because of the bounds"
    if situation.stray_process_addresses:
        return "xla-launch-pop-addresses", "TPU_PROCESS_ADDRESSES names fewer processes than chips"
    return "xla-launch", f"{situation.devices} devices on one host"


def _keras_without_jax(situation: Situation) -> tuple[str, str]:
    if situation.tensorflow_build is not None:
        return "tensorflow", "JAX is not installed, TensorFlow is"
    if situation.torch_build is not None:
        return "torch", "only PyTorch is installed"
    return "not-installed", "Keras 3 has no backend here"
