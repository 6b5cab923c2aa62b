"""TPU generations and accelerator types: sizes, topologies, zones and list prices."""

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.errors import UsageError, did_you_mean
from tpuctl.outcome import Outcome
from tpuctl.units import format_count

_DATA = Path(__file__).parent / "data"
# Their slices are 2D tori; those of the others are 3D.
FLAT_GENERATIONS = ("v2", "v3", "v5e", "v6e")
_NAME = re.compile(r"([a-z0-9]*[a-z][a-z0-9]*?)-(\d{1,6})")


@dataclass(frozen=True)
class Generation:
    """A generation of TPU chips: how to recognize it, and how to count its cores."""

    name: str
    pci_device: str
    pci_subsystem: str | None
    driver: str
    node: str
    tensorcores_per_chip: int
    devices_per_chip: int
    needs: tuple[str, ...]


def load_data(name: str) -> dict[str, Any]:
    """Return one of the dated data files of this package."""
    return load_facts(_DATA / f"{name}.json")


@cache
def generations() -> tuple[Generation, ...]:
    """Return the generations that can be recognized on the PCI bus, oldest first."""
    return tuple(
        Generation(**{**entry, "needs": tuple(entry["needs"])})
        for entry in load_data("generations")["generations"]
    )


@cache
def known_chips() -> dict[str, int]:
    """Return the PCI ids of TPU chips with the number of devices that libtpu counts per chip."""
    return {item.pci_device: item.devices_per_chip for item in generations()}


def generation(name: str) -> Generation | None:
    """Find a generation by name."""
    return next((item for item in generations() if item.name == name), None)


def generation_of_type(accelerator_type: str) -> str | None:
    """Return the generation of an accelerator type such as `v5litepod-8`; None if unknown."""
    family = accelerator_type.strip().lower().rpartition("-")[0]
    aliases = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "7x": "tpu7x"}
    name = aliases.get(family, family)
    return name if generation(name) else None


@dataclass(frozen=True)
class Price:
    """The hourly price of a TPU in one zone, in US dollars; None is unknown."""

    on_demand: float | None
    spot: float | None


@dataclass(frozen=True)
class AcceleratorType(Outcome):
    """The facts about one accelerator type; None is unknown."""

    accelerator_type: str
    generation: str
    chips: int
    cores: int
    devices: int
    workers: int
    chips_per_worker: int
    devices_per_worker: int
    topology: str | None
    mxu_size: int | None
    mxus_per_core: int | None
    hbm_gib_per_chip: float | None
    hbm_gb_per_s_per_chip: float | None
    peak_bf16_tflops_per_chip: float | None
    runtime_version: str | None
    machine_type: str | None
    vcpus_per_worker: int | None
    memory_gb_per_worker: float | None
    zones: tuple[str, ...]
    usd_per_hour: dict[str, Price]
    usd_per_chip_hour: dict[str, Price]
    prices_as_of: str
    facts_as_of: str
    in_words: str
    counting: str
    note: str | None


@dataclass(frozen=True)
class Family:
    """One row of the table of types."""

    generation: str
    types: str
    counts: str
    chips_per_worker: tuple[int, ...]
    devices_per_chip: int | None
    hbm_gib_per_chip: float | None
    hbm_gb_per_s_per_chip: float | None
    peak_bf16_tflops_per_chip: float | None
    mxu_size: int | None
    note: str | None
    lowest_usd_per_chip_hour: float | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, to compare; its price is that of the GPU alone in one zone of Google Cloud."""

    name: str
    memory_gib: float
    gb_per_s: float
    peak_16_bit_tflops: float
    format: str
    zone: str
    on_demand: float | None
    spot: float | None
    spot_as_of: str | None = None


@dataclass(frozen=True)
class TypeTable(Outcome):
    """All generations, including retired ones; `gpus` only if requested."""

    families: tuple[Family, ...]
    history: tuple[dict[str, Any], ...]
    facts_as_of: str
    prices_as_of: str
    gpus: tuple[Gpu, ...] = ()
    gpus_as_of: str | None = None

    @property
    def in_words(self) -> str:
        """How many there are, and which can be rented."""
        rented = [family.generation for family in self.families if family.types]
        gpus = f", beside {format_count(len(self.gpus), 'GPU')}" if self.gpus else ""
        return f"{len(self.families)} TPU generations; to rent: {', '.join(rented)}{gpus}"


def parse_type(text: str) -> tuple[str, int]:
    """Parse any spelling of an accelerator type into generation and number of chips.

    Raises UsageError for an unknown type or a size that does not exist.
    """
    match = _NAME.fullmatch(text.strip().lower())
    family = next((f for f in _families() if match and match[1] in f["spellings"]), None)
    if match is None or family is None:
        _refuse_bare_family(text.strip().lower())
        known = ", ".join(f"{f['prefix']}-N" for f in _families())
        raise UsageError(
            f"{text!r} is not a valid accelerator type.",
            hint=f"{_meant(text)}Types are {known}; see: tpuctl types",
        )
    chips, rest = divmod(int(match[2]), _units_per_chip(family))
    if rest or not _exists(family, chips):
        raise UsageError(
            f"{text.strip()} does not exist: {family['prefix']}-N counts {family['counts']}.",
            hint=f"Available sizes: {_sizes(family)}.",
        )
    return family["generation"], chips


def describe(text: str) -> AcceleratorType:
    """Look up a type in any spelling; raises UsageError if it is unknown."""
    generation, chips = parse_type(text)
    family = next(f for f in _families() if f["generation"] == generation)
    chip, prices = _chip(generation), load_data("prices")
    per_worker = chips if chips in family["host_chips"] else family["pod_host_chips"]
    host = family["hosts"][str(per_worker)]
    number = chips * _units_per_chip(family)
    zones = _zones(family, chips)
    per_chip = {zone: _price(generation, zone, chips) for zone in zones}
    workers, devices = chips // per_worker, chips * chip["devices_per_chip"]
    hosts = f"{workers} workers" if workers > 1 else "1 worker"
    return AcceleratorType(
        accelerator_type=f"{family['prefix']}-{number}",
        generation=generation,
        chips=chips,
        cores=chips * chip["tensorcores_per_chip"],
        devices=devices,
        workers=workers,
        chips_per_worker=per_worker,
        devices_per_worker=per_worker * chip["devices_per_chip"],
        topology=family["topologies"].get(str(chips)),
        mxu_size=chip["mxu_size"],
        mxus_per_core=chip["mxus_per_tensorcore"],
        hbm_gib_per_chip=chip["hbm_gib_per_chip"],
        hbm_gb_per_s_per_chip=chip["hbm_gb_per_s_per_chip"],
        peak_bf16_tflops_per_chip=chip["peak_bf16_tflops_per_chip"],
        runtime_version=family["runtime_version"],
        machine_type=host["machine_type"],
        vcpus_per_worker=host["vcpus"],
        memory_gb_per_worker=host["memory_gb"],
        zones=zones,
        usd_per_hour={zone: _times(price, chips) for zone, price in per_chip.items()},
        usd_per_chip_hour=per_chip,
        prices_as_of=prices["as_of"],
        facts_as_of=load_data("families")["as_of"],
        in_words=f"your program must start on {hosts}; `jax.device_count()` will be {devices}",
        counting=_counting(family, chip, number),
        note=family.get("note"),
    )


def all_types() -> TypeTable:
    """Return every current and past generation, oldest first."""
    families = {family["generation"]: family for family in _families()}
    return TypeTable(
        families=tuple(
            _line(chip, families.get(chip["name"])) for chip in load_data("chips")["chips"]
        ),
        history=tuple(load_data("families")["history"]),
        facts_as_of=load_data("families")["as_of"],
        prices_as_of=load_data("prices")["as_of"],
    )


def all_types_and_gpus(text: str) -> TypeTable | None:
    """Return the table with GPUs beside TPUs where `text` names them or one; None otherwise."""
    data = load_data("gpus")
    gpus = tuple(Gpu(**gpu) for gpu in data["gpus"])
    if text.strip().lower() not in {"gpu", "gpus", *(gpu.name.lower() for gpu in gpus)}:
        return None
    return replace(all_types(), gpus=gpus, gpus_as_of=data["as_of"])


@cache
def types_by_zone() -> dict[str, tuple[str, ...]]:
    """List the known types of each zone: whole hosts and powers of two."""
    found: dict[str, list[str]] = {}
    for family in _families():
        for chips in (2**power for power in range(14)):
            name = f"{family['prefix']}-{chips * _units_per_chip(family)}"
            for zone in _zones(family, chips) if _exists(family, chips) else ():
                found.setdefault(zone, []).append(name)
    return {zone: tuple(names) for zone, names in sorted(found.items())}


def usd_per_hour(accelerator_type: str, zone: str, *, spot: bool = False) -> float | None:
    """Return the hourly list price of a TPU in a zone, in US dollars; None if unknown."""
    generation, chips = parse_type(accelerator_type)
    price = _times(_price(generation, zone, chips), chips)
    return price.spot if spot else price.on_demand


def zones_of(generation: str) -> tuple[str, ...]:
    """Return every zone that has TPUs of a generation."""
    families = (family for family in _families() if family["generation"] == generation)
    return tuple(
        dict.fromkeys(zone for f in families for entry in f["zones"] for zone in entry["zones"])
    )


def _counting(family: dict[str, Any], chip: dict[str, Any], number: int) -> str:
    """Explain why the numbers of chips, cores and devices differ."""
    cores, devices = chip["tensorcores_per_chip"], chip["devices_per_chip"]
    suffix = f"the {number} counts {'TensorCores' if family['counts'] == 'cores' else 'chips'}"
    if cores == devices == 1:
        return f"{suffix}; a chip has one TensorCore, which is one device"
    if cores == devices:
        return f"{suffix}; a chip has {cores}, and each is a device"
    return f"{suffix}; the {cores} of a chip work together as one device (megacore)"


def _meant(text: str) -> str:
    size = re.search(r"\d*$", text.strip())[0]  # type: ignore[index]  # it may be empty
    exists = [f for f in _families() if f"{f['prefix']}-{size}" in all_sizes()]
    return did_you_mean(text, [f"{word}-{size}" for f in exists for word in f["spellings"]])


def all_sizes() -> tuple[str, ...]:
    """Return the names of all accelerator types that exist, v5e-8 beside v5litepod-8."""
    return tuple(
        f"{name}-{chips * _units_per_chip(family)}"
        for family in _families()
        for name in {family["prefix"], family["generation"]}
        for chips in map((1).__lshift__, range(14))
        if _exists(family, chips)
    )


def all_zones() -> tuple[str, ...]:
    """Return all zones with TPUs."""
    families = (zones_of(family["generation"]) for family in _families())
    return tuple(dict.fromkeys(zone for zones in families for zone in zones))


def _refuse_bare_family(name: str) -> None:
    for family in _families():
        if name in family["spellings"]:
            raise UsageError(
                f"{name} is a generation; an accelerator type includes the size.",
                hint=f"Available sizes: {_sizes(family)}.",
            )
    for chip in load_data("chips")["chips"]:
        if name == chip["name"] and chip["note"]:
            raise UsageError(f"{name} has no types. {chip['note']}", hint="tpuctl types")


def _line(chip: dict[str, Any], family: dict[str, Any] | None) -> Family:
    return Family(
        generation=chip["name"],
        types=_sizes(family) if family else "",
        counts=family["counts"] if family else "",
        chips_per_worker=tuple(family["host_chips"]) if family else (),
        devices_per_chip=chip["devices_per_chip"],
        hbm_gib_per_chip=chip["hbm_gib_per_chip"],
        hbm_gb_per_s_per_chip=chip["hbm_gb_per_s_per_chip"],
        peak_bf16_tflops_per_chip=chip["peak_bf16_tflops_per_chip"],
        mxu_size=chip["mxu_size"],
        note=chip["note"] or (family or {}).get("note"),
        lowest_usd_per_chip_hour=min(
            (p["on_demand"] for p in load_data("prices")["prices"].get(chip["name"], ())),
            default=None,
        ),
    )


@cache
def _families() -> tuple[dict[str, Any], ...]:
    return tuple(load_data("families")["families"])


@cache
def _chip(generation: str) -> dict[str, Any]:
    chips: list[dict[str, Any]] = load_data("chips")["chips"]
    return next(chip for chip in chips if chip["name"] == generation)


def _units_per_chip(family: dict[str, Any]) -> int:
    """Return what the number in a type's name counts per chip: its TensorCores, or 1."""
    cores: int = _chip(family["generation"])["tensorcores_per_chip"]
    return cores if family["counts"] == "cores" else 1


def _exists(family: dict[str, Any], chips: int) -> bool:
    if chips in family["host_chips"]:
        return True
    if not family["min_pod_chips"] <= chips <= family["max_chips"]:
        return False
    # 2D slices exist in powers of two, 3D slices in whole hosts.
    if family["generation"] in FLAT_GENERATIONS:
        return chips & (chips - 1) == 0
    return bool(chips % family["pod_host_chips"] == 0)


def _sizes(family: dict[str, Any]) -> str:
    prefix, units = family["prefix"], _units_per_chip(family)
    small = [n for n in (1, 2, 4, 8, 16, 32, 64) if _exists(family, n)]
    shown = [f"{prefix}-{chips * units}" for chips in small]
    return ", ".join([*shown, "…", f"{prefix}-{family['max_chips'] * units}"])


def _zones(family: dict[str, Any], chips: int) -> tuple[str, ...]:
    for entry in family["zones"]:
        if chips <= entry["max_chips"]:
            return tuple(entry["zones"])
    return ()


def _price(generation: str, zone: str, chips: int) -> Price:
    """Return the price of one chip, from the most specific place and size that match."""
    fitting = [
        (entry["min_chips"], len(place), entry)
        for entry in load_data("prices")["prices"].get(generation, [])
        for place in entry["places"]
        if chips >= entry["min_chips"] and (zone == place or zone.startswith(f"{place}-"))
    ]
    if not fitting:
        return Price(None, None)
    best = max(fitting, key=lambda item: item[:2])[2]
    return Price(best["on_demand"], best["spot"])


def _times(price: Price, chips: int) -> Price:
    return Price(
        None if price.on_demand is None else round(price.on_demand * chips, 4),
        None if price.spot is None else round(price.spot * chips, 4),
    )
