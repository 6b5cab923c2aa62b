"""The frameworks that a script and the user's modules that it imports use; none of them is run."""

import ast
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.codec import read_limited

# A script that uses one of these distributes its batches itself.
_DISTRIBUTED = {
    "distribute", "distribution", "set_distribution", "DataParallel", "ModelParallel",
    "DistributedDataParallel", "make_mesh", "Mesh", "pmap",
}  # fmt: skip
# Their own files say nothing about the script.
_LIBRARIES = {"keras", "tensorflow", "jax", "torch", "torch_xla", "torch_tpu", "tpuctl"}
# The nearest ones tell; a checkout of a large library has thousands.
_MOST_FILES = 100


@dataclass(frozen=True)
class Source:
    """The frameworks that a script can use, best first; empty if unknown.

    `uses_keras` also counts libraries such as keras_hub. `is_plain_keras` means that it trains with
    Keras and has no strategy code, `needs_xla` that it imports PyTorch/XLA.
    """

    frameworks: tuple[str, ...]
    uses_keras: bool
    is_plain_keras: bool
    needs_xla: bool


def read_source(tree: ast.Module, path: Path | None = None) -> Source:
    """Read `FRAMEWORKS = (...)`, else KERAS_BACKEND, else the imports of a script.

    The user's modules that the script at `path` imports count as if they were part of it.
    """
    own = list(ast.walk(tree))
    # Another module may import a framework in a function that this script never calls.
    for calls in (False, True):
        nodes = [*own, *(_nodes_beside(own, path, calls=calls) if path else ())]
        modules = set(_modules(nodes))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {part for module in modules for part in module.split(".")}
        uses_keras = "keras" in names
        frameworks = stated_frameworks(tree) or _backend(nodes) or _imported(modules, uses_keras)
        if frameworks:
            break
    is_plain_keras = uses_keras and not names & _DISTRIBUTED
    uses_keras = uses_keras or any(module.startswith("keras") for module in modules)
    return Source(frameworks, uses_keras, is_plain_keras, needs_xla="torch_xla" in names)


def _nodes_beside(own: list[ast.AST], path: Path, *, calls: bool) -> Iterator[ast.AST]:
    """Yield the nodes of the user's modules that a script imports, and that these import.

    Without `calls`, the imports in their functions are left out.
    """
    file = path.resolve()
    roots = (file.parent, *_own_folders())
    waiting, seen = deque(_files_imported(own, file, roots)), {file}
    while waiting and len(seen) <= _MOST_FILES:
        if (file := waiting.popleft()) in seen:
            continue
        seen.add(file)
        try:
            tree = ast.parse(read_limited(file))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the run shows what is wrong with it
        nodes = list(_walk(tree, calls=calls))
        waiting += _files_imported(nodes, file, roots)
        yield from nodes


def _walk(tree: ast.Module, *, calls: bool) -> Iterator[ast.AST]:
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_called = waiting.pop()
        if calls or not (is_called and isinstance(node, ast.Import | ast.ImportFrom)):
            yield node
        is_called = is_called or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        waiting += [(child, is_called) for child in ast.iter_child_nodes(node)]


def _own_folders() -> tuple[Path, ...]:
    """Return the folders of sys.path that hold no installed libraries."""
    libraries = {"site-packages", "dist-packages"}
    standard = set(sysconfig.get_paths().values())
    folders = (Path(place) for place in sys.path if place and place not in standard)
    return tuple(folder for folder in folders if not libraries & {*folder.parts})


def _files_imported(nodes: list[ast.AST], file: Path, roots: tuple[Path, ...]) -> list[Path]:
    """Return the user's files that the imports among these nodes of a file run."""
    found = []
    for node in nodes:
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        bases = file.parents[level - 1 : level] if level else roots
        for name in _names(node):
            if level or name.split(".")[0] not in _LIBRARIES:
                each = (_files_of(base, name) for base in bases)
                found += next((files for files in each if files), [])
    return found


def _files_of(base: Path, name: str) -> list[Path]:
    """Return the files that `import name` runs if it is found in a folder."""
    files = []
    for part in name.split("."):
        base = base / part
        if (package := base / "__init__.py").is_file():
            files.append(package)
        elif (module := Path(f"{base}.py")).is_file():
            return [*files, module]
        elif not base.is_dir():
            break
    return files


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a node imports; names of `from x import y` may be modules or not."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = f"{node.module}." if node.module else ""
        yield from (start + alias.name for alias in node.names)


def _modules(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if not getattr(node, "level", 0):
            yield from _names(node)


def stated_frameworks(tree: ast.Module) -> tuple[str, ...] | None:
    """Return `FRAMEWORKS` of a script made for tpuctl; None if it is not one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FRAMEWORKS":
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                return ()
            return tuple(map(str, value)) if isinstance(value, tuple | list) else ()
    return None


def _backend(nodes: list[ast.AST]) -> tuple[str, ...]:
    """Return the backend that a script sets itself, which would override tpuctl's choice."""
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and ast.unparse(node.targets[0]) == "os.environ['KERAS_BACKEND']"
        ):
            return (str(node.value.value),)
    return ()


def _imported(modules: set[str], uses_keras: bool) -> tuple[str, ...]:
    heads = {module.split(".")[0] for module in modules}
    if uses_keras and "keras" not in heads:
        return ("tensorflow",)
    if "keras" in heads:
        first = "jax" if "jax" in heads and "tensorflow" not in heads else "tensorflow"
        return (first, "jax" if first == "tensorflow" else "tensorflow")
    known = {"torch_xla": "torch", "torch_tpu": "torch"}
    order = ("torch_xla", "torch_tpu", "torch", "tensorflow", "jax")
    return tuple(known.get(head, head) for head in order if head in heads)[:1]
