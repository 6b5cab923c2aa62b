"""Checks of the installed distributions."""

from tpuctl.diagnosis.report import Finding, MachineView, found
from tpuctl.runtime.frameworks import LIBTPU_DISTS, TENSORFLOW_DISTS
from tpuctl.runtime.versions import minor, parse, requirement_of, satisfies, tables

_LIBTPU_USERS = ("jax", "torch-xla", "torch-tpu", "tensorflow-tpu")


def without_libtpu(view: MachineView) -> Finding | None:
    """F15: chips and JAX or torch_xla, but no libtpu."""
    jax, xla = view.version("jax"), view.version("torch-xla")
    # Older wheels of torch_xla contain a libtpu.
    if view.detected.frameworks.libtpu or not (jax or parse(xla).release >= (2, 5)):
        return None
    path = view.value("TPU_LIBRARY_PATH") or ("" if jax else "/lib/libtpu.so")
    if not view.on_tpu or (path and view.machine.exists(path)):
        return None
    if jax:
        return found(f"jax {jax} is installed, libtpu is not")
    return Finding(
        (f"torch_xla {xla} is installed, libtpu is not",),
        summary="libtpu is not installed",
        fix="Install libtpu together with torch_xla.",
        fix_command="pip install 'torch_xla[tpu]'",
    )


def tpu_demanded_without_libtpu(view: MachineView) -> Finding | None:
    """F17: like F15, and JAX_PLATFORMS rules out the CPU."""
    if "tpu" in view.value("JAX_PLATFORMS").lower().split(",") and without_libtpu(view):
        return found(view.shown("JAX_PLATFORMS"), "libtpu is not installed")
    return None


def ancient_jaxlib(view: MachineView) -> Finding | None:
    """F18: a jaxlib older than 0.4 with a newer jax; before, the two were numbered apart."""
    jax, jaxlib = view.version("jax"), view.version("jaxlib")
    if not jax or not jaxlib or minor(jaxlib) >= (0, 4) or minor(jax) < (0, 4):
        return None
    return found(f"jax {jax} with jaxlib {jaxlib}")


def jaxlib_mismatch(view: MachineView) -> Finding | None:
    """F19: jaxlib outside the range that the installed jax declares."""
    jax, jaxlib = view.version("jax"), view.version("jaxlib")
    if not jax or not jaxlib or ancient_jaxlib(view):
        return None
    declared = requirement_of(view.machine.requires("jax"), "jaxlib")
    if declared:
        fits, wanted = satisfies(jaxlib, declared), f"jax declares jaxlib{declared}"
    else:
        newer = parse(jaxlib) > parse(jax)
        # Since 0.5 a jax has required at least the jaxlib of its own minor version; 0.12 does not.
        oldest = tables()["jax_oldest_jaxlib"].get(".".join(map(str, minor(jax))))
        older = parse(jaxlib) < parse(oldest) if oldest else minor(jaxlib) < minor(jax)
        older = older and minor(jax) >= (0, 5)
        fits, wanted = not newer and not older, "jaxlib must not be newer, nor a minor older"
    return None if fits else found(f"jax {jax} with jaxlib {jaxlib}", wanted)


def empty_libtpu(view: MachineView) -> Finding | None:
    """`libtpu_package_without_file`: the only libtpu is a wheel without the library."""
    if not view.on_tpu or not view.detected.frameworks.libtpu or _libtpu_dists(view):
        return None
    return found(f"libtpu {view.detected.frameworks.libtpu} has no libtpu.so")


def libtpu_of_tensorflow(view: MachineView) -> Finding | None:
    """F20: a libtpu with TensorFlow's version numbers beside JAX."""
    libtpu = view.version("libtpu")
    if view.has("jax") and libtpu.startswith(("1.", "2.")):
        return found(f"libtpu {libtpu} has TensorFlow's numbering", f"jax {view.version('jax')}")
    return None


def empty_accelerator_type(view: MachineView) -> Finding | None:
    """F21: an old JAX, and an empty accelerator type from the metadata server."""
    jax = view.version("jax")
    given = view.machine.metadata("instance/attributes/accelerator-type")
    if not jax or given is None or given.strip() or not view.on_tpu:
        return None
    if parse(jax) >= parse(tables()["jax_with_empty_type_fixed"]):
        return None
    return found(f"jax {jax}", "metadata accelerator-type is empty")


def libtpu_mismatch(view: MachineView) -> Finding | None:
    """F22: libtpu matches no installed framework, or is JAX's and too new for torch_xla."""
    dists = _libtpu_dists(view)
    libtpu = view.version(dists[0]) if dists else ""
    if not libtpu or not view.on_tpu or libtpu_of_tensorflow(view) or two_libtpus(view):
        return None
    wants = _wanted_libtpus(view)
    unmet = {name: spec for name, spec in wants.items() if not satisfies(libtpu, spec)}
    xla = unmet.get("torch-xla", "")
    # Colab's images had an older libtpu beside torch_xla, which refuses a newer one.
    too_new = parse(libtpu) > parse(xla.lstrip("=<>~")) if xla else False
    if not unmet or (len(unmet) < len(wants) and not too_new):
        return None
    declared = [
        f"{name} {view.version(name)} declares libtpu{spec}" for name, spec in unmet.items()
    ]
    if not too_new:
        return found(f"libtpu {libtpu}", *declared)
    return Finding(
        (f"libtpu {libtpu}", *declared),
        severity="warning",
        summary="libtpu is too new for torch_xla",
        fix_command=f"pip install '{dists[0]}{xla}'",
    )


def libtpu_differences(view: MachineView) -> tuple[str, ...]:
    """Describe requirements that the installed libtpu does not meet, if it meets another's."""
    libtpu = view.detected.frameworks.libtpu
    if not libtpu or not view.on_tpu:
        return ()
    wants = _wanted_libtpus(view)
    suits = [name for name, spec in wants.items() if satisfies(libtpu, spec)]
    return tuple(
        f"libtpu {libtpu} suits {suits[0]}; {name} {view.version(name)} declares libtpu{spec}"
        for name, spec in wants.items()
        if suits and name not in suits
    )


def torch_tpu_range(view: MachineView) -> str | None:
    """Return the releases of torch that torch_tpu accepts, if it rejects the installed one."""
    torch, version = view.version("torch"), view.version("torch-tpu")
    declared = requirement_of(view.machine.requires("torch-tpu"), "torch")
    declared = declared or tables()["torch_tpu_torch"].get(version.split("+")[0])
    # A nightly build of torch counts as the release that it precedes.
    release = parse(torch).base_version
    return declared if version and torch and not satisfies(release, declared or "") else None


def torch_xla_mismatch(view: MachineView) -> Finding | None:
    """F24: a torch that the installed torch_xla or torch_tpu was not built for."""
    torch, xla = view.version("torch"), view.version("torch-xla")
    if wanted := torch_tpu_range(view):
        return Finding(
            (f"torch {torch} with torch_tpu {view.version('torch-tpu')}",),
            summary="torch_tpu was not built for this torch",
            fix="Install a torch that torch_tpu accepts.",
            fix_command=f"pip install 'torch{wanted}' torch_tpu",
        )
    # TorchTPU needs a newer torch than the last torch_xla, which is then unused.
    if not torch or not xla or minor(torch) == minor(xla) or view.has("torch-tpu"):
        return None
    # Builds of the same commits: torch 1.5.0a0+d6149a7 came with torch_xla 1.6+e788e5b.
    if "a0+" in torch and "+" in xla:
        return None
    return Finding(
        (f"torch {torch} with torch_xla {xla}",),
        fix_command="pip install 'torch~={0}.{1}.0' 'torch_xla[tpu]~={0}.{1}.0'".format(
            *minor(xla)
        ),
    )


def torch_xla_too_old(view: MachineView) -> Finding | None:
    """`accelerator_type_unknown`: torch_xla counts the chips whose PCI IDs it knows."""
    version, generation = view.version("torch-xla"), view.detected.chips.generation
    first = tables()["first_torch_xla"].get(generation)
    if not version or not first or parse(version).release >= parse(first).release:
        return None
    return Finding(
        (f"torch_xla {version}", f"{generation} needs torch_xla {first}"),
        summary="torch_xla is older than this type of TPU",
        fix_command="pip install -U torch 'torch_xla[tpu]'",
    )


def jax_on_a_tpu_node(view: MachineView) -> Finding | None:
    """F41: a remote TPU node, and a JAX that only knows TPU VMs."""
    return _too_new_for_nodes(view, "jax", "JAX 0.4 and newer cannot use a remote TPU node")


def torch_xla_on_a_tpu_node(view: MachineView) -> Finding | None:
    """`xla_tpu_legacy`: a remote TPU node, and a torch_xla that only knows TPU VMs."""
    return _too_new_for_nodes(
        view, "torch-xla", "torch_xla 2.1 and newer cannot use a remote TPU node"
    )


def tensorflow_beside_torch_xla(view: MachineView) -> Finding | None:
    """F25: TensorFlow was installed beside torch_xla, other than by the runtime's image."""
    if not view.on_tpu or not view.has("torch-xla") or not view.has("tensorflow"):
        return None
    if any("came with this runtime" in why for why in view.detected.frameworks.because):
        return None
    return found(f"tensorflow {view.version('tensorflow')} beside torch_xla")


def two_libtpus(view: MachineView) -> Finding | None:
    """F26: two distributions that each contain a libtpu."""
    dists = _libtpu_dists(view)
    # tensorflow-tpu counts as a second copy if it does not accept the installed libtpu.
    tensorflow = view.version("tensorflow-tpu")
    if tensorflow and len(dists) == 1:
        declared = _wanted_libtpu(view, "tensorflow-tpu")
        if declared and not satisfies(view.version(dists[0]), declared):
            dists = [*dists, "tensorflow-tpu"]
    if len(dists) < 2:
        return None
    return found(*(f"{name} {view.version(name)}" for name in dists))


def colab_without_tensorflow(view: MachineView) -> Finding | None:
    """F27: Colab's TPU image, which has no TensorFlow."""
    if view.detected.runtime != "colab-tpu-vm" or view.detected.frameworks.tensorflow:
        return None
    return found("no distribution of TensorFlow is installed")


def tensorflow_without_tpu(view: MachineView) -> Finding | None:
    """F29: chips, and a TensorFlow without TPU support."""
    frameworks = view.detected.frameworks
    if not view.on_tpu or frameworks.tensorflow_build in (None, "tpu"):
        return None
    return found(f"{frameworks.tensorflow_dist} {frameworks.tensorflow}", *frameworks.because)


def pjrt_variables_missing(view: MachineView) -> Finding | None:
    """F30: TensorFlow's TPU build on v5e or newer without the PJRT variables."""
    frameworks = view.detected.frameworks
    names = ("NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
    missing = [name for name in names if not view.value(name)]
    if frameworks.tensorflow_build != "tpu" or not view.detected.chips.needs("pjrt") or not missing:
        return None
    # The TPU VM images whose names end in -pjrt set the variables themselves.
    if any("-pjrt" in why for why in frameworks.because):
        return None
    return found(f"not set: {', '.join(missing)}", f"TPU {view.detected.generation}")


def several_tensorflows(view: MachineView) -> Finding | None:
    """F32: several TensorFlow distributions, which share one folder."""
    dists = [name for name in TENSORFLOW_DISTS if view.has(name)]
    if len(dists) < 2:
        return None
    return found(*(f"{name} {view.version(name)}" for name in dists))


def protobuf_out_of_range(view: MachineView) -> Finding | None:
    """F33: protobuf outside the range that TensorFlow declares."""
    frameworks, protobuf = view.detected.frameworks, view.version("protobuf")
    if not frameworks.tensorflow or not protobuf or not frameworks.tensorflow_dist:
        return None
    lines = view.machine.requires(frameworks.tensorflow_dist)
    declared = requirement_of(lines, "protobuf") or _table_protobuf(frameworks.tensorflow)
    if not declared or satisfies(protobuf, declared):
        return None
    wanted = f"TensorFlow {frameworks.tensorflow} needs protobuf{declared}"
    return Finding(
        (f"protobuf {protobuf}", wanted), fix_command=f"pip install 'protobuf{declared}'"
    )


def keras_mismatch(view: MachineView) -> Finding | None:
    """F34: Keras 3 on a TensorFlow before 2.16, or legacy Keras without its package."""
    tensorflow = view.detected.frameworks.tensorflow
    if not tensorflow:
        return None
    if view.is_true("TF_USE_LEGACY_KERAS"):
        legacy = view.version("tf-keras")
        if legacy and minor(legacy) == minor(tensorflow):
            return None
        return Finding(
            (view.shown("TF_USE_LEGACY_KERAS"), f"tf_keras {legacy or 'is not installed'}"),
            fix_command="pip install 'tf_keras~={}.{}.0'".format(*minor(tensorflow)),
        )
    if not view.detected.frameworks.is_keras_3:
        return None
    if minor(tensorflow) >= minor(tables()["keras_3_needs_tensorflow"]):
        return None
    return found(f"keras {view.version('keras')} with TensorFlow {tensorflow}")


def lightning_without_xla(view: MachineView) -> Finding | None:
    """F37: a Lightning release whose XLA accelerator moved to another package."""
    version = view.version("lightning") or view.version("pytorch-lightning")
    enterprise = view.has("pytorch-lightning-enterprise")
    if not view.on_tpu or not version or enterprise or not view.has("torch-xla"):
        return None
    if parse(version) < parse(tables()["lightning_without_xla"]):
        return None
    return found(f"lightning {version}", "pytorch-lightning-enterprise is not installed")


def libtpu_sdk_unusable(view: MachineView) -> Finding | None:
    """F38: Python 3.12 or newer with an old libtpu."""
    python, libtpu = view.machine.host.python or "", view.version("libtpu")
    if not view.on_tpu or not libtpu or minor(python) < (3, 12):
        return None
    if parse(libtpu) > parse(tables()["libtpu_before_python_3_12"]):
        return None
    return found(f"Python {python} with libtpu {libtpu}")


def uses_nodes(view: MachineView, name: str) -> bool:
    """Whether an installed release of JAX or torch_xla can use a TPU on another machine."""
    return view.has(name) and parse(view.version(name)) < parse(
        tables()["first_without_nodes"][name]
    )


def _too_new_for_nodes(view: MachineView, name: str, summary: str) -> Finding | None:
    platform = view.detected.platform
    if not platform.remote or not view.has(name) or uses_nodes(view, name):
        return None
    evidence = (f"{name} {view.version(name)}", f"the TPU is at {platform.remote}")
    fix = "Run on a TPU VM itself, or on today's TPU of Colab or Kaggle; TPU nodes are retired."
    return Finding(evidence, summary=summary, fix=fix)


def _libtpu_dists(view: MachineView) -> list[str]:
    """Return what brings a libtpu; a few wheels of libtpu-nightly are empty."""
    empty = tables()["empty_libtpu"]
    return [name for name in LIBTPU_DISTS if view.has(name) and view.version(name) not in empty]


def _wanted_libtpus(view: MachineView) -> dict[str, str]:
    wants = ((name, _wanted_libtpu(view, name)) for name in _LIBTPU_USERS)
    return {name: specifier for name, specifier in wants if specifier}


def _wanted_libtpu(view: MachineView, name: str) -> str | None:
    """Return the libtpu that a framework declares; its metadata wins over the dated table."""
    version = view.version(name)
    if not version:
        return None
    lines = view.machine.requires(name)
    declared = requirement_of(lines, "libtpu") or requirement_of(lines, "libtpu-nightly")
    table = tables()[name.replace("-", "_") + "_libtpu"]
    return declared or table.get(version.split("+")[0])


def _table_protobuf(tensorflow: str) -> str | None:
    table: dict[str, str] = tables()["tensorflow_protobuf"]
    known = [key for key in table if minor(key) <= minor(tensorflow)]
    return table[max(known, key=minor)] if known else None
