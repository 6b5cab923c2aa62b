"""Open the pipeline of a target, with a change if there is one to test."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.profiling.frameworks.iterables import open_iterable, remember_lines
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.inputs import read_shards
from tpuctl.profiling.request import SUPPORTED, Request, Target
from tpuctl.profiling.whatif import Change
from tpuctl.usercode.function import Function, load_function, parameters, user_code_errors

# The frameworks whose pipelines can be built with a change.
CHANGED = {"tensorflow", "torch"}


@contextlib.contextmanager
def building_with(change: Change | None) -> Iterator[None]:
    """Apply a change to pipelines that are built inside the block."""
    with contextlib.ExitStack() as stack:
        if change and "tensorflow" in sys.modules:
            from tpuctl.profiling.frameworks import _tf_changes

            stack.enter_context(_tf_changes.building_with(change))
        if change and "torch" in sys.modules:
            from tpuctl.profiling.frameworks import _torch

            stack.enter_context(_torch.building_with(change))
        yield


def change_end(made: Any, kind: str | None, change: Change | None) -> Any:
    """Apply a change to the end of a pipeline."""
    if change is None:
        return made
    if kind == "tf.data":
        from tpuctl.profiling.frameworks import _tf_changes

        return _tf_changes.change_end(made, change)
    if kind == "grain" and change.way == "workers" and hasattr(made, "mp_prefetch"):
        options = sys.modules["grain"].multiprocessing.MultiprocessingOptions
        return made.mp_prefetch(options(num_workers=change.number))
    return made


def open_source(
    request: Request, folder: str, *, imported: Callable[[], None] = lambda: None
) -> Source:
    """Build or load the pipeline of a target; `folder` is for its counters.

    `imported` is called before it is built, because importing may take longer than building. Raises
    TargetError if the user's code fails, InvalidInputError for what cannot be iterated, and
    ImportError for images without TensorFlow.
    """
    target = request.target
    if target.kind == "shards" and not _is_for_tf_data(target):
        return _open_batches(request, folder)
    if target.kind != "function":
        from tpuctl.profiling.frameworks._tf import open_folder

        imported()
        return open_folder(target, batch_size=request.batch_size, image_size=request.image_size)
    name = Function(target.place, target.function or "")
    function = load_function(name, given=("batch_size",), caller="profile run")
    imported()
    parameter = parameters(function).get("batch_size")
    if parameter and request.keeps_batch_size and isinstance(parameter.default, int):
        request = replace(request, batch_size=parameter.default)
    arguments = {"batch_size": request.batch_size} if parameter else {}

    def make() -> Any:
        if "tensorflow" in sys.modules:
            remember_lines(sys.modules["tensorflow"].data.Dataset)
        with user_code_errors(f"Calling {name} failed", name), building_with(request.change):
            return function(**arguments)

    loaded = CHANGED & set(sys.modules)
    made = make()
    if request.change and CHANGED & set(sys.modules) != loaded:
        # The function itself imported the framework, too late for the change.
        made = make()
    made = _read_by(made)
    kind = kind_of(made)
    if kind is None:
        what = f"{type(made).__module__}.{type(made).__qualname__}"
        raise InvalidInputError(
            f"{name} returned a {what}, which cannot be iterated.",
            hint="It may return a tf.data.Dataset, a Grain or PyTorch loader or any iterable. "
            f"Supported: {SUPPORTED}.",
        )
    made = change_end(made, kind, request.change)
    loader = _loader_inside(made) if kind == "iterable" else None
    if loader is not None:
        from tpuctl.profiling.frameworks._torch import open_loader

        return open_loader(loader, folder, batch_size=request.batch_size, through=made)
    if kind == "iterable":
        return open_iterable(made, make, folder, name=name.name, batch_size=request.batch_size)
    return _open_framework(made, kind, folder, request.batch_size)


def _open_framework(made: Any, kind: str, folder: str, batch_size: int) -> Source:
    if kind == "tf.data":
        from tpuctl.profiling.frameworks._tf import open_dataset

        return open_dataset(made)
    if kind == "torch":
        from tpuctl.profiling.frameworks._torch import open_loader

        return open_loader(made, folder, batch_size=batch_size)
    from tpuctl.profiling.frameworks._grain import allow_workers, open_grain

    allow_workers()
    return open_grain(made, folder, batch_size=batch_size)


def _is_for_tf_data(target: Target) -> bool:
    """Whether TensorFlow is installed and tf.data can read these shards."""
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    return has_tensorflow and read_shards(Path(target.place)).is_for_tf_data


def _open_batches(request: Request, folder: str) -> Source:
    """Read shards without TensorFlow."""
    from tpuctl.datasets.readers import open_batches

    batches = open_batches(request.target.place, request.batch_size)

    def read() -> Any:
        return ((batch.images, batch.labels) for batch in batches)

    return open_iterable(read(), read, folder, name="open_batches", batch_size=request.batch_size)


def kind_of(made: object) -> str | None:
    """Return the kind of object that a user's function returned, without importing a framework."""
    if _is(made, "tensorflow", "data.Dataset"):
        return "tf.data"
    if _is(made, "torch.utils.data", "DataLoader"):
        return "torch"
    if any(_is(made, "grain", name) for name in ("MapDataset", "IterDataset", "DataLoader")):
        return "grain"
    has_items = hasattr(made, "__getitem__") and hasattr(made, "__len__")
    plain = isinstance(made, (str, bytes, dict))
    return "iterable" if (isinstance(made, Iterable) or has_items) and not plain else None


def _read_by(made: Any) -> Any:
    """The data set that a framework's iterator reads; anything else as it is."""
    if isinstance(made, Iterator) and type(made).__module__.startswith(("tensorflow.", "grain.")):
        for name in ("_dataset", "_data_loader"):
            if kind_of(found := getattr(made, name, None)) in ("tf.data", "grain"):
                return found
    return made


def _loader_inside(made: object) -> Any:
    """The only DataLoader that an object wraps, like webdataset's WebLoader, or None."""
    parts = list(getattr(made, "__dict__", {}).values())
    parts += [part for each in parts if isinstance(each, (list, tuple)) for part in each]
    loaders = {id(part): part for part in parts if kind_of(part) == "torch"}
    return next(iter(loaders.values())) if len(loaders) == 1 else None


def _is(made: object, module: str, name: str) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(made, found)
