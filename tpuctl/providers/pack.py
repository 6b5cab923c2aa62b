"""The archive that a run is sent with: project, local data, checkpoints, and tpuctl itself."""

import bz2
import hashlib
import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tpuctl
from tpuctl.errors import UsageError
from tpuctl.remote.local_tree import LocalTree, read_tree
from tpuctl.runtime.redact import redact
from tpuctl.units import format_bytes, format_count

PLACE = ".tpuctl"
_NOT_SENT = {
    "api", "cli", "cloud", "compile", "demo", "emulator", "linting", "notebook", "providers",
    "remote", "reporters", "supervise", "_templates", "__pycache__",
}  # fmt: skip
# Failures that a training there hardly has: of control planes, accounts, servers, kernels.
_RARE = frozenset({
    "cloud.json", "hosted.json", "kubernetes.json", "maxtext.json", "ssh.json", "system.json",
    "pallas.json", "tools.json", "vllm.json",
})  # fmt: skip
_OF_DOCTOR = re.compile(r"F\d\d")
# Failures of a framework are for programs that name it; a file is up to a tenth of what is sent.
_OF_FRAMEWORK = {
    "flax.json": rb"flax|haiku|equinox|optax",
    "hub.json": rb"transformers|diffusers|datasets|huggingface|accelerate|keras_hub|kagglehub",
    "tensorflow.json": rb"tensorflow|keras",
    "torch.json": rb"torch",
    "torch_xla.json": rb"torch",
}
_PROGRAMS = ("", ".ipynb", ".py", ".sh")


@dataclass(frozen=True)
class Packed:
    """An archive, what was left out because it may hold a secret, and its digest."""

    archive: bytes = field(repr=False)
    files: int
    left_out: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The digest: equal files give the same archive."""
        return hashlib.sha256(self.archive).hexdigest()

    @property
    def described(self) -> str:
        """A description of what is sent."""
        size = format_bytes(len(self.archive))
        return f"sends {format_count(self.files, 'file')} with tpuctl, {size}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which files are not sent."""
        left_out = ", ".join(self.left_out)
        return (f"Not sent, as they may hold secrets: {left_out}.",) if left_out else ()


@dataclass(frozen=True)
class HostedJob:
    """The job to run: `work` for `hosted_job`, with files and folders and their paths.

    `resume` is "last", the name of a run, or a folder with checkpoints.
    """

    script: Path
    work: Mapping[str, Any]
    sources: tuple[tuple[Path, str], ...]
    resume: str | None = None
    limit_s: float | None = None
    job: str | None = None


def pack(work: Mapping[str, Any], sources: Iterable[tuple[Path, str]]) -> Packed:
    """Pack what `hosted_job` is to do, tpuctl for it, and files and folders with their places."""
    job = json.dumps(work)
    held, left_out, files = io.BytesIO(), [], 0
    trees = [(read_tree(source), place) for source, place in sources]
    held.write(_own_part(_RARE | _not_named(job.encode(), (tree for tree, _ in trees))))
    with bz2.BZ2File(held, "ab") as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        _add(tar, f"{PLACE}/job.json", job.encode())
        for tree, place in trees:
            left_out += [each.path for each in tree.left_out if each.is_secret]
            for row, entry in zip(tree.rows, tree.entries, strict=True):
                if entry.kind == "f":
                    inside = "/".join(filter(None, (place, str(row[0]))))
                    _add(tar, inside, (Path(tree.root) / entry.path).read_bytes())
                    files += 1
    return Packed(held.getvalue(), files, tuple(left_out))


def refuse_secrets(words: Sequence[str], place: str = "", hint: str = "") -> None:
    """Raise UsageError for words that look like a secret: they would be in what is sent."""
    place = place or "the kernel's source"
    hint = hint or (
        "Add it as a Kaggle secret in the web editor, and read it in the script with "
        "kaggle_secrets.UserSecretsClient().get_secret(NAME)."
    )
    for word in words:
        if redact(word) != word:
            text = f"This looks like a secret, and would be sent in {place}: {redact(word)}"
            raise UsageError(text, hint=hint)


def _not_named(job: bytes, trees: Iterable[LocalTree]) -> frozenset[str]:
    """Return the files with failures of frameworks that neither job nor programs name."""
    files = (
        Path(tree.root) / entry.path
        for tree in trees
        for entry in tree.entries
        if entry.kind == "f" and Path(entry.path).suffix in _PROGRAMS
    )
    left = dict(_OF_FRAMEWORK)
    for program in itertools.chain([job], map(Path.read_bytes, files)):
        left = {name: word for name, word in left.items() if not re.search(word, program)}
    return frozenset(left)


@cache
def _own_part(rare: frozenset[str]) -> bytes:
    """Return the beginning of every archive: tpuctl's own files, without an end."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for path, place in _own_files():
            if path.parent.name == "failures" and path.suffix == ".json":
                _add(tar, place, _failures_in(path, only_of_doctor=path.name in rare))
            else:
                _add(tar, place, path.read_bytes())
        # A quarter smaller than gzip: an archive of less than 1 MB travels in the run's source.
        return bz2.compress(held.getvalue())


def _failures_in(path: Path, *, only_of_doctor: bool) -> bytes:
    """Return the failures of a file without their sources, a tenth of its size."""
    document = json.loads(path.read_bytes())
    document["failures"] = [
        failure | {"sources": {}}
        for failure in document["failures"]
        if not only_of_doctor or _OF_DOCTOR.fullmatch(failure["code"])
    ]
    return json.dumps(document, ensure_ascii=False).encode()


def _own_files() -> Iterator[tuple[Path, str]]:
    root = Path(tpuctl.__file__).parent
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not _NOT_SENT & set(parts) and path.suffix != ".pyc":
            yield path, "/".join((PLACE, "tpuctl", *parts))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(data), 0o644
    tar.addfile(about, io.BytesIO(data))
