"""Call a function right after a module was imported.

The hook imports this in every Python process of a program, before the program's own code. So it
imports `sys` only: any other module could be one that the program has a file of its own for.
"""

import sys

MYPY = False  # True for the type checker
if MYPY:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# The modules whose classes are patched, and the hooks that do it.
HOOKS = {
    "tensorflow.python.data.ops.iterator_ops": "tensorflow_iterators",
    "tensorflow.python.data.ops.dataset_autograph": "tensorflow_loops",
    "tensorflow.python.data.ops.dataset_ops": "tensorflow_arguments",
    "tensorflow.python.distribute.input_lib": "tensorflow_distributed",
    "jax._src.api": "jax",
    "keras.src.backend.jax.trainer": "keras",
    "keras.src.trainers.data_adapters.py_dataset_adapter": "tensorflow_py_datasets",
    "torch.utils.data.dataloader": "torch",
    "grain._src.python.dataset.dataset": "grain",
}


class AfterImport:
    """A finder that calls `then(module)` when a wanted module was imported, or now if it was."""

    def __init__(self, wanted: "Iterable[str]", then: "Callable[[ModuleType], None]") -> None:
        self._wanted, self._then = set(wanted), then
        for name in self._wanted & set(sys.modules):
            self._call(sys.modules[name])

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Find a wanted module as the other finders do, and extend its loader."""
        if name not in self._wanted:
            return None
        self._wanted.discard(name)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: "Any") -> None:
        plain = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            # The module keeps its loader, so that must be as it was.
            loader.__dict__.pop("exec_module", None)
            plain(module)
            self._call(module)

        loader.exec_module = exec_module

    def _call(self, module: "ModuleType") -> None:
        self._wanted.discard(module.__name__)
        try:
            self._then(module)
        except Exception as error:
            sys.stderr.write(f"tpuctl: {module.__name__} is not profiled: {error}\n")
