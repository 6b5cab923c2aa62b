"""Do something right after a module was imported, whoever imports it and whenever."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Then = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself and only wraps what the others find."""

    def __init__(self, wanted: dict[str, Then]) -> None:
        self._wanted = dict(wanted)
        for name in [name for name in self._wanted if name in sys.modules]:
            self._wanted.pop(name)(sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loader of a module that somebody waits for."""
        if name not in self._wanted:
            return None
        then = self._wanted.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, then)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, then: Then) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._then(module)
        except Exception as error:
            sys.stderr.write(f"tpuctl: {module.__name__} is not watched: {error}\n")
