"""Plan the environment variables that must change before a framework is imported.

Frameworks read them once, at import.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tpuctl.codec import read_json
from tpuctl.training.choose import FRAMEWORKS, Choice


@dataclass(frozen=True)
class Change:
    """One variable to set, or to remove if `value` is None, and why.

    `code` is the catalogue failure that the change prevents.
    """

    variable: str
    value: str | None
    because: str
    code: str | None = None

    def __str__(self) -> str:
        what = f"unset {self.variable}" if self.value is None else f"{self.variable}={self.value}"
        return f"{what} ({self.because})"


def plan_environment(
    choice: Choice,
    problems: Collection[str],
    env: Mapping[str, str],
    *,
    libtpu: str | None = None,
) -> tuple[Change, ...]:
    """List the changes that a choice needs, given the codes of the detected problems.

    `libtpu` is the path of the TPU library, for TensorFlow's PJRT variables. Variables that are
    already right are left out.
    """
    wanted = (
        *_keras(choice),
        *_addresses(choice, problems),
        *_hostnames(problems, env),
        *_platforms(choice, problems, env),
        *_pjrt(choice, problems, libtpu),
    )
    return tuple(change for change in wanted if env.get(change.variable) != change.value)


def keras_backend(env: Mapping[str, str], problems: Collection[str]) -> str | None:
    """Return the backend that the user has set for Keras, unless the accelerator rules it out."""
    folder = env.get("KERAS_HOME") or f"{env.get('HOME', '')}/.keras"
    config: object = None
    with suppress(OSError, ValueError, RecursionError):
        config = read_json(Path(folder, "keras.json"))
    configured = config.get("backend") if isinstance(config, dict) else None
    told = env.get("KERAS_BACKEND") or str(configured)
    return told.lower() if told.lower() in FRAMEWORKS and "F35" not in problems else None


def find_libtpu() -> str | None:
    """Return the path of libtpu.so, from the VM image or from pip."""
    spec = find_spec("libtpu")
    pip = Path(spec.origin).with_name("libtpu.so") if spec and spec.origin else None
    places = (Path("/lib/libtpu.so"), Path("/usr/lib/libtpu.so"), pip)
    return next((str(place) for place in places if place and place.is_file()), None)


def apply_changes(changes: Iterable[Change], env: MutableMapping[str, str]) -> None:
    """Apply changes to an environment."""
    for change in changes:
        if change.value is None:
            env.pop(change.variable, None)
        else:
            env[change.variable] = change.value


def _keras(choice: Choice) -> Iterable[Change]:
    if choice.framework in FRAMEWORKS:
        yield Change("KERAS_BACKEND", choice.framework, f"Keras runs on {choice.framework}", "F35")


def _addresses(choice: Choice, problems: Collection[str]) -> Iterable[Change]:
    if choice.framework == "torch" and "F53" in problems:
        because = "torch_xla would start more processes than TPU_PROCESS_ADDRESSES names"
        yield Change("TPU_PROCESS_ADDRESSES", None, because, "F53")
    elif "F54" in problems:
        yield Change("TPU_PROCESS_ADDRESSES", None, "its address 'local' has no port", "F54")
    if choice.framework == "torch" and "F61" in problems:
        yield Change("PJRT_DEVICE", "TPU", "PJRT_DEVICE hides the TPU", "F61")


def _hostnames(problems: Collection[str], env: Mapping[str, str]) -> Iterable[Change]:
    if "F47" not in problems:
        return
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ADDRS"):
        if any(space in env.get(name, "") for space in " \n\t"):
            yield Change(
                name, None, f"{name} contains an error message instead of host names", "F47"
            )


def _platforms(
    choice: Choice, problems: Collection[str], env: Mapping[str, str]
) -> Iterable[Change]:
    """Remove a setting that demands a missing TPU; avoiding the TPU may be intended."""
    asked_for = env.get("JAX_PLATFORMS", "").lower()
    if choice.framework == "jax" and "F16" in problems and "tpu" in asked_for:
        yield Change("JAX_PLATFORMS", None, "JAX would fail without a TPU", "F16")


def _pjrt(choice: Choice, problems: Collection[str], libtpu: str | None) -> Iterable[Change]:
    if choice.strategy != "tpu-local" or "F30" not in problems or libtpu is None:
        return
    because = "TensorFlow supports this generation only through PJRT"
    yield Change("NEXT_PLUGGABLE_DEVICE_USE_C_API", "true", because, "F30")
    yield Change("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", libtpu, because, "F30")
