"""Write docs/licences.md: the licence of everything that `pip install 'tpuctl[all]'` brings.

python -m tests.licences
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/licences.md"
# Not installed beside the others, on some versions of Python, or without a licence in its metadata.
KNOWN = {
    "annotated-doc": "MIT",
    "apache-beam": "Apache-2.0",
    "async-timeout": "Apache-2.0",
    "backports-asyncio-runner": "PSF-2.0",
    "exceptiongroup": "MIT",
    "namex": "Apache-2.0",
    "pyyaml-ft": "MIT",
    "libtpu": "proprietary: Google Cloud Platform Terms of Service",
    "scikit-image": "BSD-3-Clause",
    "scipy": "BSD-3-Clause",
    "tomli": "MIT",
}
NOTES = """# Licences of dependencies

tpuctl itself is Apache-2.0. The packages that it can install declare the licences below. One
library is included in tpuctl and in each HTML report: Chartist 1.5.0, which draws the charts, is
MIT, Copyright (c) 2013 Gion Kunz; its notice is in `tpuctl/reporters/chartist.js`. Before you
distribute an image or a product that contains these packages, check two licences:

- **asyncssh** (extra `ssh`) is EPL-2.0 or GPL-2.0-or-later, at your choice: a weak copyleft.
- **libtpu** (extra `aot`, and every TPU VM) is not open source: Google's terms of service apply.

Apache Beam (extra `beam`) installs some 60 more packages, which are not listed.
`python -m tests.licences` writes this page, and a test compares it with the installed packages.

| package | licence | comes with |
|---|---|---|
"""


def licence_of(name: str) -> str:
    """As short as the package's metadata allow."""
    if name in KNOWN:
        return KNOWN[name]
    about: Any = metadata(name)
    if expression := about.get("License-Expression"):
        return str(expression)
    declared = (about.get("License") or "").strip()
    if declared and "\n" not in declared and len(declared) < 60:
        return declared
    kinds = [kind for kind in about.get_all("Classifier", []) if kind.startswith("License ::")]
    text = ", ".join(kind.rpartition(" :: ")[2] for kind in kinds) or declared[:60]
    if not text:
        raise LookupError(f"{name} declares no licence; add it to KNOWN")
    return text


def direct() -> dict[str, set[str]]:
    """Every dependency and the extras that ask for it; "" is tpuctl itself."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for extra, texts in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for name in names_of(texts):
            found.setdefault(name, set()).add(extra)
    found.pop("tpuctl")
    return found


def names_of(texts: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in texts}


def everything() -> dict[str, set[str]]:
    """The same with what these need in turn, as far as it is installed."""
    found = direct()
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        needed = [text for text in texts if is_needed(Requirement(text))]
        for other in names_of(needed):
            if not found[name] <= found.get(other, set()):
                found.setdefault(other, set()).update(found[name])
                waiting.append(other)
    return found


def is_needed(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def listed() -> dict[str, str]:
    rows = re.findall(r"^\| ([\w.-]+) \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.M)
    return {name: licence for name, licence in rows if name != "package"}


def main() -> None:
    found = everything()
    # Those of other versions of Python stay.
    for name in KNOWN:
        found.setdefault(name, set())
    rows = []
    for name, extras in sorted(found.items()):
        named = (f"`{extra}`" if extra else "tpuctl" for extra in sorted(extras - {"all"}))
        where = ", ".join(named) or "another version of Python"
        rows.append(f"| {name} | {licence_of(name)} | {where} |\n")
    PAGE.write_text(NOTES + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
