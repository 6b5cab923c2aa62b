"""What is released: the same bytes from the same sources, with types, licence and forms."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tpuctl

ROOT = Path(__file__).parents[1]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
SOURCES = ("tpuctl", "templates", "docs", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml")


def build(sources: Path, target: Path, epoch: str, umask: int) -> dict[str, str]:
    """Build wheel and sdist; the checksum of each."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": "Asia/Tokyo" if umask else "UTC"}
    options = ["--quiet", "--no-isolation", "--wheel", "--sdist", "--outdir", str(target)]
    subprocess.run(
        [sys.executable, "-m", "build", *options, str(sources)],
        env=environment, check=True, capture_output=True, umask=umask,
    )  # fmt: skip
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in target.iterdir()}


@pytest.mark.slow
def test_two_builds_in_two_places_are_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="build is not installed")
    ignore = shutil.ignore_patterns("__pycache__")
    for place in ("here", "in another place"):
        (tmp_path / place).mkdir()
        for name in SOURCES:
            source, target = ROOT / name, tmp_path / place / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignore, copy_function=shutil.copy)
            else:
                shutil.copy(source, target)
    first = build(tmp_path / "here", tmp_path / "1", "1700000000", 0o022)
    second = build(tmp_path / "in another place", tmp_path / "2", "1700000000", 0o077)
    assert first == second
    assert len(first) == 2
    other = build(tmp_path / "here", tmp_path / "3", "1600000000", 0o022)
    assert all(first[name] != other[name] for name in first), (
        "the date is not taken from the variable"
    )
    check_contents(tmp_path / "1")


def check_contents(folder: Path) -> None:
    """The wheel has types, templates and licence; nothing in either archive names a user."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    release = f"tpuctl-{tpuctl.__version__}"
    assert {"tpuctl/py.typed", "tpuctl/_templates/mnist_cnn.py"} <= set(names)
    assert f"{release}.dist-info/licenses/LICENSE" in names
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as sources:
        members = sources.getmembers()
    assert {(each.uid, each.gid, each.uname) for each in members} == {(0, 0, "")}
    assert f"{release}/docs/tutorial.md" in {each.name for each in members}


@pytest.mark.slow
def test_the_version_is_written_in_one_place() -> None:
    text = f'"{tpuctl.__version__}"'
    files = [
        *ROOT.glob("*.toml"),
        *ROOT.glob("*.cff"),
        *ROOT.glob("*.yml"),
        *ROOT.rglob("tpuctl/**/*.py"),
    ]
    assert [each.name for each in files if f"version__ = {text}" in each.read_text()] == [
        "__init__.py"
    ]
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert "version:" not in (ROOT / "CITATION.cff").read_text().partition("\n")[2]


def test_every_issue_form_asks_for_a_recorded_machine() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    forms = [path for path in FORMS.glob("*.yml") if path.name != "config.yml"]
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"]
        assert form["description"]
        assert len({each["id"] for each in form["body"]}) == len(form["body"])
        assert "tpuctl doctor --record" in path.read_text(encoding="utf-8"), path.name
    assert "advisories/new" in (FORMS / "config.yml").read_text(encoding="utf-8")
