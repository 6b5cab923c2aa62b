"""Open JAX devices as a mesh, and for Keras 3."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from tpuctl.training.devices import Devices, Executed, check_split


@contextmanager
def open_devices(strategy: str, *, remote: str | None = None) -> Iterator[Devices]:
    """Distribute batches over the devices of a JAX strategy while the block runs.

    `native` is a mesh over all of them with one axis, `data`.
    """
    import jax
    import numpy as np

    several_hosts = strategy == "distributed+mesh"
    if several_hosts:
        jax.distributed.initialize()
    try:
        devices = jax.devices() if "mesh" in strategy else jax.devices()[:1]
        # Since 0.10, jax.make_mesh makes explicit axes, with which gathers need annotations.
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


def split_cpu(count: int) -> None:
    """Split the CPU into virtual devices, and hide others; must run before JAX uses them."""
    import jax

    with suppress(RuntimeError):  # in use already, perhaps split by the same cell before
        jax.config.update("jax_num_cpu_devices", count)
        jax.config.update("jax_platforms", "cpu")
    check_split(count, [device.platform for device in jax.devices()])


@contextmanager
def counting_steps(devices: Devices, counts: list[Executed]) -> Iterator[None]:
    """Count the training steps of each device from its copy of the optimizer's step counter.

    Each device increments its own copy when it executes the training step.
    """
    keras = _keras()
    if keras is None:
        yield
        return
    started: dict[int, tuple[Any, int]] = {}
    make = keras.Model.make_train_function

    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer := getattr(model, "optimizer", None):
            started.setdefault(id(optimizer), (optimizer, int(optimizer.iterations)))
        return make(model, *args, **kwargs)

    keras.Model.make_train_function = noted
    try:
        yield
    finally:
        keras.Model.make_train_function = make
        steps = dict.fromkeys(devices.names, 0)
        for optimizer, before in started.values():
            for shard in optimizer.iterations.value.addressable_shards:
                name = str(shard.device)
                steps[name] = steps.get(name, 0) + int(shard.data) - before
        counts.extend(Executed(name, count, None) for name, count in steps.items())


@contextmanager
def _data_parallel(wanted: bool) -> Iterator[None]:
    """Let Keras, if installed, split every batch over all devices."""
    keras = _keras() if wanted else None
    if keras is None:
        yield
        return
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        with _uneven_batches():
            yield
    finally:
        keras.distribution.set_distribution(before)


@contextmanager
def _uneven_batches() -> Iterator[None]:
    """Give every device the whole batch if it cannot be divided, such as the last of an epoch.

    Keras would fail with JAX's IndivisibleError. The result of the step is that of one device.
    """
    import jax
    from keras.src.backend.jax import distribution_lib

    plain = getattr(distribution_lib, "distribute_data_input", None)
    # On several hosts, each has only its own part of a batch, not the whole.
    if plain is None or jax.process_count() > 1:
        yield
        return
    told: set[int] = set()

    def distribute(batch: Any, layout: Any, *rest: Any, **named: Any) -> Any:
        if batch is None:  # the weights of train_on_batch, at which Keras 3.15 fails
            return None
        sharding = getattr(layout, "backend_layout", layout)
        devices = sharding.mesh.size
        rows = batch.shape[0] if batch.ndim else devices
        if rows % devices:
            if rows not in told:
                told.add(rows)
                sys.stderr.write(
                    f"tpuctl: a batch of {rows} examples cannot be divided over {devices} devices; "
                    "each computes all of it.\n"
                )
            everywhere = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
            return jax.make_array_from_process_local_data(everywhere, batch)
        return plain(batch, layout, *rest, **named)

    distribution_lib.distribute_data_input = distribute
    try:
        yield
    finally:
        distribution_lib.distribute_data_input = plain


def _keras() -> Any:
    try:
        import keras
    except ModuleNotFoundError:
        return None
    return keras
