"""Watch what Keras on JAX iterates itself: arrays, generators and its own `PyDataset`.

On TensorFlow Keras makes a tf.data pipeline of them, which is watched as such.
"""

from types import ModuleType
from typing import Any

from tpuctl.pipeline.models import ChainNode
from tpuctl.pipeline.program.watching import Origin, Watch

# Their iterators are watched where they are made, stage by stage.
WATCHED_BELOW = ("TFDatasetAdapter", "TorchDataLoaderAdapter", "GrainDatasetAdapter")


def hook(watch: Watch, module: ModuleType) -> None:
    """Watch every epoch of `fit` from now on."""
    iterator: Any = module.__dict__["JAXEpochIterator"]
    plain = iterator._get_iterator

    def _get_iterator(self: Any) -> Any:
        made, name = plain(self), type(self.data_adapter).__name__
        if name in WATCHED_BELOW:
            return made
        return watch.wrapped(watch.of(self, lambda: _origin(name)), iter(made))

    iterator._get_iterator = _get_iterator


def _origin(adapter: str) -> Origin:
    name = adapter.removesuffix("Adapter")
    return Origin(kind="iterable", chain=ChainNode("Iterable", name), lanes=1, runs_ahead=False)
