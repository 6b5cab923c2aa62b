"""What `data cache` is told, and what it answers."""

from dataclasses import dataclass, field

from tpuctl.datasets.plan import Interval
from tpuctl.errors import UsageError
from tpuctl.outcome import Outcome
from tpuctl.units import MIB


@dataclass(frozen=True)
class CacheOptions:
    """Everything that can be asked of `cache`; raises UsageError for what makes no sense.

    `elements` keeps only so many of each variant; variant n is made with `seed` + n.
    """

    variants: int = 1
    shard_bytes: int = 128 * MIB
    elements: int | None = None
    seed: int = 0
    overwrite: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (
            ("--variants", self.variants, 999),
            ("--shard-size", self.shard_bytes, 1 << 50),
            ("--elements", 1 if self.elements is None else self.elements, 1 << 50),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"{name} must be between 1 and {most}, not {value}.")


@dataclass(frozen=True)
class Prediction:
    """What a sample of the first elements says about all; None where their number is unknown."""

    sample: int
    elements: int | None
    bytes: Interval | None
    seconds: Interval | None


@dataclass(frozen=True)
class CacheResult(Outcome):
    """What one `cache` did; `elements` counts those of all variants."""

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
        """Variants that may be equal to one another."""
        if self.variants > 1 and not self.seeded:
            return (
                f"{self.target} takes no argument `seed`: its variants differ only where it draws "
                "from the global generators of random, NumPy, TensorFlow or torch.",
            )
        return ()


@dataclass(frozen=True)
class CopyResult(Outcome):
    """A data set of a bucket that is on this machine now, and what had to go for it."""

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
