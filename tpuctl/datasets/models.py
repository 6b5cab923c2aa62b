"""Options of the data commands, and their results."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tpuctl.datasets.images.geometry import Fidelity, Mode
from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES
from tpuctl.datasets.quarantine import Quarantined
from tpuctl.errors import DamagedError, InvalidInputError, TpuctlError, UsageError
from tpuctl.outcome import Outcome, Status
from tpuctl.units import MIB, parse_bytes

Encode = Literal["jpeg", "raw", "yuv420", "webp", "png"]
Container = Literal["tfrecord", "wds", "arrayrecord"]
Engine = Literal["local", "beam"]

DEFAULT_MAX_BAD = "auto"
_LABELS = ("auto", "folder", "none")
_MAX_SIDE = 8192
_SEEN_BY_PRESIZE = ("missing", "size", "crc32c", "unreadable", "quarantine")


@dataclass(frozen=True)
class PresizeOptions:
    """The options of `presize`; raises UsageError for invalid ones.

    `size` is (height, width). `max_bad` is a share (`1%`), a number of files (`3`), or `auto`: 1 %
    or 3 files, whichever is more, but always less than half. `zone` is that of the machine or its
    TPU, to warn about buckets elsewhere. `beam` are options of Beam, `NAME=VALUE`. With `sizes`,
    one pass makes one data set per size, each in its own folder. With `steal`, this machine also
    builds the shards that other machines have not begun or have abandoned. Images that need more
    than `max_image_bytes` of memory to decode are left out.
    """

    size: tuple[int, int] = (224, 224)
    mode: Mode = "cover"
    fidelity: Fidelity = "balanced"
    encode: Encode = "jpeg"
    quality: int = 95
    format: Container = "tfrecord"
    labels: str = "auto"
    shard_bytes: int = 128 * MIB
    workers: int | None = None
    max_bad: str = DEFAULT_MAX_BAD
    retry_quarantined: bool = False
    overwrite: bool = False
    seed: int = 0
    dry_run: bool = False
    zone: str | None = None
    engine: Engine = "local"
    beam: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    steal: bool = False
    max_image_bytes: int = MAX_IMAGE_BYTES

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--mode", self.mode, get_args(Mode)),
            ("--fidelity", self.fidelity, get_args(Fidelity)),
            ("--encode", self.encode, get_args(Encode)),
            ("--format", self.format, get_args(Container)),
            ("--engine", self.engine, get_args(Engine)),
        ):
            if value not in known:
                raise UsageError(f"{name} {value} is not one of: {', '.join(known)}.")
        if self.labels not in _LABELS and not self.labels.lower().endswith(".csv"):
            raise UsageError(
                f"--labels {self.labels} is not one of: {', '.join(_LABELS)}, or a file *.csv."
            )
        for side in (*self.size, *(side for size in self.sizes for side in size)):
            _check_range("--size", side, _MAX_SIDE)
        if len(set(self.sizes)) < len(self.sizes):
            raise UsageError("--size has the same size twice.")
        _check_range("--quality", self.quality, 100)
        _check_range("--shard-size", self.shard_bytes, 1 << 50)
        _check_range("--max-image-memory", self.max_image_bytes, 1 << 50)
        _check_range("--workers", 1 if self.workers is None else self.workers, 1024)
        if self.mode == "short" and any(a != b for a, b in (self.size, *self.sizes)):
            raise UsageError(
                "--mode short takes one number: the length of the shorter side.",
                hint=f"Write --size {min(self.size)}.",
            )
        if self.steal and self.engine == "beam":
            raise UsageError("--steal is for --engine local: Beam deals out shards itself.")
        if self.beam and self.engine != "beam":
            raise UsageError(
                f"Beam options have no effect with --engine {self.engine}.",
                hint="Add --engine beam.",
            )
        if self.quality != 95 and self.encode not in ("jpeg", "webp"):
            raise UsageError(f"--quality has no effect with --encode {self.encode}.")
        allowed_bad(self.max_bad, 1)


def _check_range(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise UsageError(f"{name} must be between 1 and {high}, not {value}.")


@dataclass(frozen=True)
class Part:
    """The share of one machine: every `hosts`-th shard, from the `host`-th on."""

    host: int = 0
    hosts: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise UsageError(
                f"--hosts {self.host}/{self.hosts} is out of range.",
                hint=f"Machines are counted from 0: 0/{max(1, self.hosts)} is the first.",
            )


def parse_part(text: str) -> Part:
    """Read `i/n`, machine i of n, counted from 0; raises UsageError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if not match:
        raise UsageError(
            f"--hosts {text} is not a share of the work.",
            hint="Write --hosts 0/4 on the first of four machines, or --hosts auto on a TPU slice.",
        )
    return Part(int(match[1]), int(match[2]))


def parse_size(text: str) -> tuple[int, int]:
    """Read `224`, or `256x192` as height x width; raises UsageError."""
    match = re.fullmatch(r"(\d{1,5})(?:[x×](\d{1,5}))?", text.strip().lower())
    if not match:
        raise UsageError(
            f"--size {text} is not a valid size.", hint="Write --size 224 or --size 256x192."
        )
    return int(match[1]), int(match[2] or match[1])


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Read one size or several, `224,384`; raises UsageError."""
    return tuple(parse_size(part) for part in text.split(","))


def parse_size_of(flag: str, text: str) -> int:
    """Read the size in bytes that a flag gives; raises UsageError."""
    try:
        return parse_bytes(text)
    except (InvalidInputError, OverflowError) as error:
        raise UsageError(
            f"{flag} {text} is not a valid size.", hint=f"Write {flag} 128MiB or {flag} 2GB."
        ) from error


def allowed_bad(limit: str, inputs: int) -> int:
    """Compute how many of `inputs` may be left out before the run fails; raises UsageError."""
    if limit == DEFAULT_MAX_BAD:
        return min(max(inputs // 100, 3), max(0, (inputs - 1) // 2))
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*(%?)", limit.strip())
    if not match or (match[2] and float(match[1]) > 100) or (not match[2] and "." in match[1]):
        raise UsageError(
            f"--max-bad {limit} is neither a share nor a number of files.",
            hint="Write --max-bad 1% or --max-bad 3.",
        )
    return int(inputs * float(match[1]) / 100) if match[2] else int(match[1])


@dataclass(frozen=True)
class PresizeResult(Outcome):
    """The result of `presize`: `images` = `written` + `skipped` + the number of `quarantined`.

    Unless other machines than number `host` still have to build `shards_missing` shards.
    """

    plan_id: str
    images: int
    written: int
    skipped: int
    salvaged: int
    quarantined: tuple[Quarantined, ...]
    shards: int
    bytes_in: int
    bytes_out: int
    images_per_s: float
    seconds: float
    resumed: bool
    manifest: str
    classes: tuple[str, ...]
    ignored: dict[str, int]
    dry_run: bool = False
    host: int = 0
    hosts: int = 1
    shards_missing: int = 0
    sizes: "tuple[PresizeResult, ...]" = ()
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`attention` if some inputs were left out."""
        if self.shards_missing:
            return "partial"
        return "attention" if self.quarantined else "ok"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the inputs, and the work left for other machines."""
        if not self.shards_missing:
            return self.notes
        shards = "1 shard is" if self.shards_missing == 1 else f"{self.shards_missing} shards are"
        return (
            *self.notes,
            f"{shards} still to come from other machines; the last of them writes "
            f"{self.manifest}. Run the same command there, or with --hosts 0/1 here.",
        )


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong with a data set, and where."""

    path: str
    kind: str
    detail: str


@dataclass(frozen=True)
class VerifyResult(Outcome):
    """Whether a data set is what its manifest says."""

    path: str
    plan_id: str
    depth: Literal["bytes", "records"]
    shards: int
    records: int
    bytes: int
    damage: tuple[Damage, ...]
    seconds: float
    foreign: tuple[str, ...] = field(default=(), metadata={"internal": True})
    maker: str = field(default="tpuctl data presize SRC", metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Shards that no manifest lists, and that no reader should touch."""
        return tuple(f"{name} is not listed in the manifest." for name in self.foreign)

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Damage, as one error with the way to repair it."""
        if not self.damage:
            return ()
        count = len(self.damage)
        findings = "1 finding" if count == 1 else f"{count} findings"
        return (DamagedError(f"The data set {self.path} is damaged: {findings}.", hint=self._way),)

    @property
    def _way(self) -> str:
        """How to repair it: the command that made it compares sizes and crc32c, nothing else."""
        again = f"{self.maker} {shlex.quote(self.path)}, with the options that made it."
        seen = {damage.path for damage in self.damage if damage.kind in _SEEN_BY_PRESIZE}
        if all(damage.path in seen for damage in self.damage):
            return f"Repair it: {again}"
        manifest = shlex.quote(str(Path(self.path) / "manifest.json"))
        return f"Make it again: rm {manifest}, then {again}"


@dataclass(frozen=True)
class SizeBin:
    """How many originals have from `from_megapixels` up to `to_megapixels`."""

    from_megapixels: float
    to_megapixels: float | None
    records: int


@dataclass(frozen=True)
class LabelCount:
    """How many records carry a label; `name` is empty for records without one."""

    label: int
    name: str
    records: int


@dataclass(frozen=True)
class Description(Outcome):
    """What a data set holds.

    `shapes` are those of the arrays in a cache's elements; None where a size differs.
    """

    path: str
    plan_id: str
    options: dict[str, object]
    totals: dict[str, int]
    shards: int
    labels: tuple[LabelCount, ...]
    sizes: tuple[SizeBin, ...]
    quarantined: dict[str, int]
    record_bytes: dict[str, int]
    flags: dict[str, int]
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    sheet: str | None = None


@dataclass(frozen=True)
class CacheOptions:
    """The options of `cache`; raises UsageError for invalid ones.

    `elements` keeps only that many of each variant; variant n is made with `seed` + n.
    """

    variants: int = 1
    shard_bytes: int = 128 * MIB
    elements: int | None = None
    seed: int = 0
    overwrite: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        _check_range("--variants", self.variants, 999)
        _check_range("--shard-size", self.shard_bytes, 1 << 50)
        _check_range("--elements", 1 if self.elements is None else self.elements, 1 << 50)


@dataclass(frozen=True)
class Interval:
    """A predicted total: most likely, and the ends of its 95 % interval."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """Predicted from a sample of the first elements; None if their number is unknown."""

    sample: int
    elements: int | None
    bytes: Interval | None
    seconds: Interval | None


@dataclass(frozen=True)
class CacheResult(Outcome):
    """The result of `cache`; `elements` counts those of all variants."""

    plan_id: str
    target: str
    variants: int
    kept_variants: int
    elements: int
    shards: int
    bytes_out: int
    seconds: float
    predicted: Prediction | None
    manifest: str
    dry_run: bool
    seeded: bool = field(default=True, metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether variants may be equal to one another."""
        if self.variants > 1 and not self.seeded:
            return (
                f"{self.target} takes no argument `seed`: its variants differ only where it draws "
                "from the global generators of random, NumPy, TensorFlow or torch.",
            )
        return ()


@dataclass(frozen=True)
class CopyResult(Outcome):
    """A data set of a bucket that was copied here, and the copies deleted to make room."""

    address: str
    path: str
    plan_id: str
    shards: int
    records: int
    bytes: int
    fetched_bytes: int
    evicted: tuple[str, ...]
    seconds: float
    format: str = field(default="tfrecord", metadata={"internal": True})
