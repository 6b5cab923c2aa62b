"""Find the frameworks of a training script from its source, without running it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# A script that uses one of these distributes its batches itself.
_DISTRIBUTED = {
    "distribute", "distribution", "set_distribution", "DataParallel", "ModelParallel",
    "DistributedDataParallel", "make_mesh", "Mesh", "pmap",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The frameworks that a script can use, best first; empty if unknown.

    `is_plain_keras` means that it trains with Keras and has no strategy code, `needs_xla` that it
    imports PyTorch/XLA.
    """

    frameworks: tuple[str, ...]
    is_plain_keras: bool
    needs_xla: bool


def read_source(tree: ast.Module) -> Source:
    """Read `FRAMEWORKS = (...)`, else KERAS_BACKEND, else the imports of a script."""
    modules = set(_modules(tree))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {part for module in modules for part in module.split(".")}
    uses_keras = "keras" in names
    frameworks = _stated(tree) or _backend(tree) or _imported(modules, uses_keras)
    is_plain_keras = uses_keras and not names & _DISTRIBUTED
    return Source(frameworks, is_plain_keras, needs_xla="torch_xla" in names)


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _stated(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FRAMEWORKS":
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                return ()
            return tuple(map(str, value)) if isinstance(value, tuple | list) else ()
    return ()


def _backend(tree: ast.Module) -> tuple[str, ...]:
    """Return the backend that a script sets itself, which would override tpuctl's choice."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "os.environ['KERAS_BACKEND']"
            and isinstance(node.value, ast.Constant)
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
