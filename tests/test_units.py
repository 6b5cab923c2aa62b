import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl import units
from tpuctl.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128 * 1024**2), ("1.5 GB", 1_500_000_000), ("4096", 4096), ("0", 0), ("1k", 1000)],
)
def test_a_size_reads_as_people_write_it(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "MiB", "1 furlong", "1e9", "nan", "1,5 GB"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a size"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("2d", 172800)]
)
def test_a_duration_reads_as_people_write_it(text: str, seconds: float) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "1h30", "h", "-1s", "1 fortnight", "1h garbage"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a duration"):
        units.parse_duration_s(text)


@given(st.integers(0, 2**60))
def test_a_written_size_reads_back_within_half_a_percent(size: int) -> None:
    assert units.parse_bytes(units.format_bytes(size).replace(",", "")) == pytest.approx(
        size, rel=0.006
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.035, "35 ms"), (4.2, "4.2 s"), (59.97, "1m 00s"), (123, "2m 03s"), (3900, "1h 05m"),
     (200_000, "2d 07h"), (float("nan"), "unknown"), (float("inf"), "unknown")],
)  # fmt: skip
def test_a_duration_is_written_with_its_two_largest_units(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


def test_rates_money_and_shares_keep_three_digits() -> None:
    assert units.format_rate(1234.4, "examples") == "1,234 examples/s"
    assert units.format_rate(9.871, "images") == "9.87 images/s"
    assert units.format_usd(1234.5) == "$1,234.50"
    assert units.format_usd(0.0123) == "$0.0123"
    assert units.format_fraction(0.98765) == "98.8 %"
    assert units.format_fraction(None) == "unknown"
    assert units.format_usd(None) == "unknown"


def test_a_count_agrees_with_its_noun() -> None:
    assert units.format_count(1, "chip") == "1 chip"
    assert units.format_count(0, "chip") == "0 chips"
    assert units.format_count(1024, "process", "processes") == "1,024 processes"
