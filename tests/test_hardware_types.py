"""Accelerator types: the counting rules, unknown facts and prices."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpuctl.hardware
from tpuctl.errors import UsageError
from tpuctl.hardware.types import (
    all_types,
    describe,
    generation_of_type,
    generations,
    load_data,
    parse_type,
    usd_per_hour,
)
from tpuctl.reporters import types as report

CONTRACT = {
    "accelerator_type", "generation", "chips", "cores", "devices", "workers", "chips_per_worker",
    "topology", "hbm_gib_per_chip", "hbm_gb_per_s_per_chip", "peak_bf16_tflops_per_chip",
    "runtime_version", "machine_type", "vcpus_per_worker", "memory_gb_per_worker", "zones",
    "usd_per_hour", "prices_as_of",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "official", "chips", "cores", "devices", "workers"),
    [
        ("v2-8", "v2-8", 4, 8, 8, 1),
        ("v2-512", "v2-512", 256, 512, 512, 64),
        ("v3-32", "v3-32", 16, 32, 32, 4),
        ("v4-8", "v4-8", 4, 8, 4, 1),
        ("v4-32", "v4-32", 16, 32, 16, 4),
        ("v4-256", "v4-256", 128, 256, 128, 32),
        ("v5e-1", "v5litepod-1", 1, 1, 1, 1),
        ("v5e-8", "v5litepod-8", 8, 8, 8, 1),
        ("v5litepod-16", "v5litepod-16", 16, 16, 16, 4),
        ("V5LITE-4", "v5litepod-4", 4, 4, 4, 1),
        ("v5p-8", "v5p-8", 4, 8, 4, 1),
        ("v6e-4", "v6e-4", 4, 4, 4, 1),
        ("v6e-256", "v6e-256", 256, 256, 256, 64),
        ("tpu7x-8", "tpu7x-8", 4, 8, 8, 1),
        ("7x-2", "tpu7x-2", 1, 2, 2, 1),
        ("v7x-16", "tpu7x-16", 8, 16, 16, 2),
    ],
)
def test_a_type_is_counted_in_chips_cores_devices_and_workers(
    name: str, official: str, chips: int, cores: int, devices: int, workers: int
) -> None:
    kind = describe(name)
    assert kind.accelerator_type == official
    assert (kind.chips, kind.cores, kind.devices, kind.workers) == (chips, cores, devices, workers)
    assert kind.chips_per_worker * kind.workers == kind.chips
    assert f"`jax.device_count()` will be {devices}" in kind.in_words
    assert f"must start on {workers} worker" in kind.in_words


@pytest.mark.parametrize(
    "name", ["v5e-7", "v5e-2", "v4-4", "v4-9", "v2-16", "v6e-512", "v3-0", "v5e", "v1", "edge",
             "v9-8", "", "-", "v5e-", "v5e-8-8", "v4--8", "v5e-99999999"],
)  # fmt: skip
def test_a_type_that_does_not_exist_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        describe(name)
    assert refused.value.hint


def test_a_type_that_does_not_exist_is_wrong_usage(tpuctl: Callable[..., Any]) -> None:
    for name in ("nonsense", "v5e", "v5e-7", "v1"):
        result = tpuctl("types", "--json", name)
        (error,) = result.document["errors"]
        assert (result.exit_code, error["code"]) == (2, "usage")
        assert error["hint"]
    assert tpuctl("types", "--json", "v5e-8").exit_code == 0


@given(st.text(max_size=12))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    try:
        generation, chips = parse_type(text)
    except UsageError:
        return
    assert chips > 0
    assert generation


def test_unknown_facts_are_null_and_said_to_be_unknown(tpuctl: Callable[..., Any]) -> None:
    data = tpuctl("types", "tpu7x-2", "--json").data
    assert set(data) >= CONTRACT
    assert data["vcpus_per_worker"] is None
    assert data["runtime_version"] is None
    assert data["usd_per_hour"]["us-central1-c"] == {"on_demand": None, "spot": None}
    text = tpuctl("types", "tpu7x-2").stdout
    assert "unknown" in text
    assert "None" not in text


def test_the_price_is_that_of_the_whole_tpu_in_the_zone() -> None:
    assert usd_per_hour("v5e-8", "us-central1-a") == pytest.approx(9.6)
    assert usd_per_hour("v5e-8", "us-central1-a", spot=True) == pytest.approx(1.96)
    assert usd_per_hour("v4-8", "us-central2-b") == pytest.approx(12.88)
    assert usd_per_hour("v5e-8", "mars-north1-a") is None


def test_a_zone_a_region_and_a_size_beat_what_is_wider() -> None:
    assert usd_per_hour("v3-8", "europe-west4-a", spot=True) == pytest.approx(4 * 0.561)
    assert usd_per_hour("v3-32", "europe-west4-a", spot=True) == pytest.approx(16 * 0.66)
    assert usd_per_hour("v6e-1", "us-east5-a", spot=True) == pytest.approx(1.215)
    assert usd_per_hour("v6e-1", "us-east50-a") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("v4-8", "megacore"), ("v3-8", "each is a device"), ("v5e-8", "counts chips")],
)
def test_the_three_ways_of_counting_are_explained(name: str, words: str) -> None:
    assert words in describe(name).counting


def test_every_zone_of_every_type_has_an_entry_for_its_price() -> None:
    for name in ("v2-8", "v2-32", "v3-8", "v3-32", "v4-8", "v5e-1", "v5p-8", "v6e-8"):
        kind = describe(name)
        assert kind.zones
        assert set(kind.usd_per_hour) == set(kind.zones)
        assert all(price.on_demand for price in kind.usd_per_hour.values()), name


def test_the_table_holds_every_generation_history_included(tpuctl: Callable[..., Any]) -> None:
    names = [line.generation for line in all_types().families]
    assert names[:2] == ["v1", "edge"]
    assert {item.name for item in generations()} <= set(names)
    text = tpuctl("types").stdout
    for word in ("v2-512", "v5litepod-256", "v6e-8", "tpu8t", "Edge TPU"):
        assert word in text
    data = tpuctl("types", "--json").data
    assert "v3 pod" in [entry["accelerator_type"] for entry in data["history"]]


@pytest.mark.parametrize("word", ["gpus", "GPU", "h100"])
def test_gpus_are_shown_beside_tpus_where_they_are_asked_for(
    tpuctl: Callable[..., Any], word: str
) -> None:
    lines = {tuple(line.split()[:6]) for line in tpuctl("types", word).stdout.splitlines()}
    assert ("TPU", "v5e", "16", "819", "197", "$1.20") in lines
    assert ("GPU", "T4", "16", "320", "65", "$0.3500") in lines
    data = tpuctl("types", word, "--json").data
    assert {gpu["name"] for gpu in data["gpus"]} >= {"P100", "T4", "V100", "L4", "A100", "H100"}
    for gpu in data["gpus"]:
        # Google sells no B200 on demand.
        assert (gpu["on_demand"] is None) == (gpu["name"] == "B200")
        # Spot prices change daily: only one has the day on which it was read.
        assert (gpu["spot"] is None) == (gpu["name"] != "H100")
        assert 0 < (gpu["spot"] or 0.1) < (gpu["on_demand"] or 100)
        assert min(gpu["memory_gib"], gpu["gb_per_s"], gpu["peak_16_bit_tflops"]) > 0
    assert {len(data[name]) for name in ("prices_as_of", "gpus_as_of")} == {len("2026-11-20")}
    assert tpuctl("types", "--json").data["gpus"] == []
    assert "tpuctl types gpus" in tpuctl("types").stdout


def test_the_two_files_of_chips_agree() -> None:
    table = {chip["name"]: chip for chip in load_data("chips")["chips"]}
    for item in generations():
        assert table[item.name]["tensorcores_per_chip"] == item.tensorcores_per_chip
        assert table[item.name]["devices_per_chip"] == item.devices_per_chip


def test_every_data_file_says_when_and_from_where() -> None:
    for path in (Path(tpuctl.hardware.__file__).parent / "data").glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert re.match(r"20\d\d", data["as_of"]), path
        assert data["sources"], path


def test_a_generation_is_read_out_of_a_type() -> None:
    assert generation_of_type("v5litepod-8") == "v5e"
    assert generation_of_type("v4-256") == "v4"
    assert generation_of_type("nonsense") is None


def test_the_report_of_a_type_is_golden(golden: Callable[[str, str], None]) -> None:
    import io

    from rich.console import Console

    paper = io.StringIO()
    Console(file=paper, width=100, color_system=None).print(report.render_types(describe("v4-32")))
    lines = (line.rstrip() for line in paper.getvalue().splitlines())
    golden("types_v4_32.txt", "\n".join(lines) + "\n")
