"""Open TensorFlow's distribution strategies."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tpuctl.training.devices import Devices, Executed, check_split


@contextmanager
def open_devices(strategy: str, *, remote: str | None = None) -> Iterator[Devices]:
    """Open the devices of a TensorFlow strategy while the block runs."""
    import tensorflow as tf

    if strategy.startswith("tpu-"):
        with connected_tpu(tf, _resolver_argument(strategy, remote)) as tpu:
            yield _devices(tpu, tpu.extended.worker_devices)
    elif strategy == "default":
        first = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        yield _devices(tf.distribute.get_strategy(), [first[0].name])
    else:
        local = _local(tf, strategy)
        yield _devices(local, local.extended.worker_devices)


def split_cpu(count: int) -> None:
    """Split the CPU into virtual devices, and hide GPUs; must run before TensorFlow uses them."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    with suppress(RuntimeError):  # in use already, perhaps split by the same cell before
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(cpu, parts)
    check_split(count, [each.device_type for each in tf.config.list_logical_devices()])


@contextmanager
def counting_steps(devices: Devices, counts: list[Executed]) -> Iterator[None]:
    """Count the steps of each replica in a variable on its own device.

    Counts every call of the strategy's `run`, which Keras uses for all steps.
    """
    import tensorflow as tf

    strategy = devices.native
    with strategy.scope():
        counter = tf.Variable(
            [0, 0],
            dtype=tf.int64,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    run = strategy.run

    def counted(fn: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            leaves = [leaf for leaf in tf.nest.flatten((args, kwargs)) if tf.is_tensor(leaf)]
            rows = tf.shape(leaves[0], tf.int64)[0] if leaves and leaves[0].shape.rank else 0
            counter.assign_add(tf.stack([tf.constant(1, tf.int64), tf.cast(rows, tf.int64)]))
            return fn(*args, **kwargs)

        return run(step, args=args, kwargs=kwargs, **options)

    strategy.run = counted
    try:
        yield
    finally:
        strategy.run = run
        for part in strategy.experimental_local_results(counter):
            steps, examples = part.numpy().tolist()
            counts.append(Executed(str(part.device).partition("/task:0")[2], steps, examples))


@contextmanager
def connected_tpu(tf: Any, argument: str | None) -> Iterator[Any]:
    """Connect to a TPU, initialise it and yield its TPUStrategy; shut it down at the end.

    Only "local" selects the chips of this machine; with None the resolver reads TPU_NAME and
    related variables (tensorflow.org/guide/tpu).
    """
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=argument)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    try:
        yield tf.distribute.TPUStrategy(resolver)
    finally:
        tf.tpu.experimental.shutdown_tpu_system(resolver)


def _resolver_argument(strategy: str, remote: str | None) -> str | None:
    if strategy == "tpu-local":
        return "local"
    if strategy == "tpu-grpc" and remote and not remote.startswith("{"):
        return remote if remote.startswith("grpc://") else f"grpc://{remote}"
    return None


def _local(tf: Any, strategy: str) -> Any:
    if strategy == "multiworker-mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _devices(strategy: Any, names: Iterable[str]) -> Devices:
    return Devices(
        names=tuple(names),
        replicas=int(strategy.num_replicas_in_sync),
        scope=strategy.scope,
        native=strategy,
    )
