import re
from pathlib import Path

import tpuctl
from tpuctl.cli.contents import CONTENTS

ROOT = Path(__file__).parents[1]


def test_the_readme_lists_every_command_as_its_help_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tpuctl (\w+)` \| (.*) \|$", readme, re.MULTILINE)
    assert rows == [(entry.name, entry.help) for entry in CONTENTS]


def test_the_newest_version_in_the_changelog_is_the_packages() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert versions[:2] == ["Unreleased", tpuctl.__version__]


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (path, target)
        for path in documents
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert links
    assert [link for link in links if not (link[0].parent / link[1]).exists()] == []


def test_every_module_on_the_map_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [ROOT, ROOT / "tpuctl", *filter(Path.is_dir, (ROOT / "tpuctl").rglob("*"))]
    names = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert len(names) > 40
    # After its first mention with a folder, a module is named alone.
    assert [name for name in names if not any((at / name).exists() for at in folders)] == []
    packages = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert packages == {
        path.name for path in (ROOT / "tpuctl").iterdir() if (path / "__init__.py").is_file()
    }
