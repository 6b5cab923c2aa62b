"""Open JAX's devices, for Keras 3 and for a mesh of one's own."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tpuctl.training.device_counts import Executed
from tpuctl.training.strategies import Devices


@contextmanager
def open_devices(strategy: str, *, remote: str | None = None) -> Iterator[Devices]:
    """Spread batches over the devices that a strategy of JAX names; undo that at the end.

    `native` is a mesh with one axis, `data`, over them all.
    """
    import jax
    import numpy as np

    several_hosts = strategy == "distributed+mesh"
    if several_hosts:
        jax.distributed.initialize()
    try:
        devices = jax.devices() if "mesh" in strategy else jax.devices()[:1]
        # From 0.10 on jax.make_mesh gives explicit axes, under which gathers need annotations.
        mesh = jax.sharding.Mesh(np.array(devices), ("data",))
        with _data_parallel(len(devices) > 1):
            yield Devices(
                names=tuple(map(str, devices)),
                replicas=len(devices),
                scope=nullcontext,
                native=mesh,
            )
    finally:
        if several_hosts:
            jax.distributed.shutdown()


@contextmanager
def counting_steps(devices: Devices, counts: list[Executed]) -> Iterator[None]:
    """Read, at the end, how often each device has counted up its own copy of the step number.

    The step number is a variable of Keras' optimizer; each device's copy is what its own execution
    of the training step left there.
    """
    keras = _keras()
    if keras is None:
        yield
        return
    begun: dict[int, tuple[Any, int]] = {}
    make = keras.Model.make_train_function

    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer := getattr(model, "optimizer", None):
            begun.setdefault(id(optimizer), (optimizer, int(optimizer.iterations)))
        return make(model, *args, **kwargs)

    keras.Model.make_train_function = noted
    try:
        yield
    finally:
        keras.Model.make_train_function = make
        steps = dict.fromkeys(devices.names, 0)
        for optimizer, before in begun.values():
            for shard in optimizer.iterations.value.addressable_shards:
                name = str(shard.device)
                steps[name] = steps.get(name, 0) + int(shard.data) - before
        counts.extend(Executed(name, count, None) for name, count in steps.items())


@contextmanager
def _data_parallel(wanted: bool) -> Iterator[None]:
    """Let Keras, where it is installed, split every batch over all devices."""
    keras = _keras() if wanted else None
    if keras is None:
        yield
        return
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def _keras() -> Any:
    try:
        import keras
    except ModuleNotFoundError:
        return None
    return keras
