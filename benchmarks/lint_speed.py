"""How long `tpuctl lint` takes for 10,000 lines, as a ratio to LibCST's parser on the same text.

    python -m benchmarks lint_speed

A ratio within one run is comparable between machines. On 2026-11-22: 0.41 of LibCST's parser alone,
0.02 of LibCST with its names resolved, as a linter on it would need them.
"""

import ast
import time
from collections.abc import Callable
from pathlib import Path

import libcst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider

from tpuctl.linting.documents import read_script
from tpuctl.linting.lint import Selection, check
from tpuctl.linting.targets import target

LINES = 10_000


def texts() -> list[str]:
    """About 10,000 lines of this project and of its templates, which use the frameworks."""
    root = Path(__file__).parents[1]
    found: list[str] = []
    for path in sorted([*root.glob("templates/*.py"), *root.glob("tpuctl/**/*.py")]):
        found.append(path.read_text(encoding="utf-8"))
        if sum(text.count("\n") for text in found) > LINES:
            break
    return found


def seconds(work: Callable[[str], object], sources: list[str]) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for text in sources:
            work(text)
        best = min(best, time.process_time() - began)
    return best


def resolve_with_libcst(text: str) -> object:
    wrapper = MetadataWrapper(libcst.parse_module(text), unsafe_skip_copy=True)
    return wrapper.resolve(QualifiedNameProvider)


def main() -> None:
    sources, where = texts(), target("kaggle")
    lines = sum(text.count("\n") for text in sources)
    parsing = seconds(libcst.parse_module, sources)
    linting = seconds(
        lambda text: check(read_script(Path("a.py"), text), where, Selection()), sources
    )
    plain = seconds(ast.parse, sources)
    names = seconds(resolve_with_libcst, sources[:10]) * len(sources) / 10
    print(f"{lines:,} lines: lint {linting:.2f} s of CPU time")
    print(f"of LibCST's parser alone     {linting / parsing:5.2f}")
    print(f"of LibCST with names         {linting / names:5.2f}  (10 files, scaled)")
    print(f"of Python's parser alone     {linting / plain:5.1f}")


if __name__ == "__main__":
    main()
