"""Train an image classifier on shards made by `tpuctl data presize` or `data cache`.

    python images.py --data shards --epochs 2     # on whatever is here
    python images.py --data fake --steps 2        # no data, any laptop
    python images.py --data fake --steps 2 --cpu-devices 2  # two replicas

Class folders become labels, and half of the pictures are mirrored, by the
device. Photographs without labels train on a task that needs none: how far
was this picture turned, by 0, 90, 180 or 270 degrees (Gidaris et al. 2018,
arXiv 1803.07728).

Keras 3; KERAS_BACKEND=tensorflow (default) or jax. The input pipeline is
tf.data under both. Interrupt it whenever you like, or let a spot TPU do
so: the same command goes on at the next step and ends with the same
weights. How long the device waited for pictures is hidden inside Keras'
compiled step: tpuctl launch and tpuctl profile run -- CMD tell it.

Measured: 240 pictures of 32x32 of the digits 0, 1 and 2 (scikit-learn),
batch 24, 5 epochs on two vCPUs: 99 % are read correctly while training.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all replicas together")
parser.add_argument("--out", default="training", help="checkpoints, model.keras and result.json")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument(
    "--strategy",
    default="auto",
    choices=[
        "auto",
        "default",
        "mirrored",
        "tpu-local",
        "tpu-grpc",
        "tpu-name",
        "mesh",
        "single",
        "cpu",
    ],
    help="how to spread a batch over devices; 'auto' looks at what there is",
)
parser.add_argument("--learning-rate", type=float, default=1e-3, help="for a batch of 32; scaled")
parser.add_argument(
    "--dtype",
    default="auto",
    choices=["auto", "float32", "bfloat16"],
    help="of the arithmetic; 'auto' is bfloat16 on TPUs (weights stay float32)",
)
parser.add_argument(
    "--steps-per-execution", type=int, default=1, help="steps per call of the device; 20 on a TPU"
)
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--classes", type=int, help="how many; only for shards of tpuctl data cache")
parser.add_argument("--image-size", type=int, default=224, help="only for --data fake")
parser.add_argument("--trace", type=int, help="record so many steps into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into so many pretended devices")

# What the Keras code below runs on; `tpuctl launch` picks from these.
FRAMEWORKS = ("tensorflow", "jax")
TEMPLATE = "images"
# The learning rate that suits this batch is scaled linearly with the real one.
BASE_BATCH_SIZE = 32
ROTATIONS = ("0", "90", "180", "270")
# Records are 5 to 150 kB; 1,000 of them mix the classes and stay below 150 MB.
SHUFFLE_RECORDS = 1000
# Shards that are read at once; fixed, so that the order is the same on every machine.
READERS = 4


# ---- Devices and strategy ------------------------------------------------------------------------


def open_strategy(name: str, cpu_devices: int | None):
    """Return (scope to build in, replicas, device names, TensorFlow's strategy or None)."""
    import keras

    if keras.backend.backend() == "jax":
        return open_jax_strategy(name)
    return open_tensorflow_strategy(name, cpu_devices)


def open_tensorflow_strategy(name: str, cpu_devices: int | None):
    """Connect, initialise and build in that order: a TPU system must exist before its strategy."""
    import tensorflow as tf

    if cpu_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * cpu_devices
        tf.config.set_logical_device_configuration(cpu, parts)
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if name == "auto":
        name = "mirrored" if len(devices) > 1 else "default"
    if name.startswith("tpu"):
        # The literal argument "local" alone selects the chips of this very machine; without it
        # the resolver asks TPU_NAME and its relatives.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            **({"tpu": "local"} if name == "tpu-local" else {})
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    elif name == "mirrored":
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    elif name == "default":
        strategy = tf.distribute.get_strategy()
        return strategy.scope(), 1, [devices[0].name], strategy
    else:
        raise SystemExit(f"--strategy {name} is for KERAS_BACKEND=jax; this is TensorFlow.")
    names = list(strategy.extended.worker_devices)
    return strategy.scope(), strategy.num_replicas_in_sync, names, strategy


def open_jax_strategy(name: str):
    """Spread the batch over all devices by data parallelism, or use the first."""
    import jax
    import keras

    devices = jax.devices()
    if name not in ("auto", "mesh", "single", "cpu", "default"):
        raise SystemExit(f"--strategy {name} is for KERAS_BACKEND=tensorflow; this is JAX.")
    if len(devices) > 1 and name in ("auto", "mesh"):
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return contextlib.nullcontext(), len(devices), [str(device) for device in devices], None
    return contextlib.nullcontext(), 1, [str(devices[0])], None


# ---- Data ----------------------------------------------------------------------------------------


def read_manifest(folder: str) -> dict:
    """Read which files belong to the data set; anything else in the folder is not ours."""
    import tensorflow as tf

    path = os.path.join(folder, "manifest.json")
    try:
        with tf.io.gfile.GFile(path) as file:
            manifest = json.load(file)
        encode, form = manifest["options"]["encode"], manifest["options"]["format"]
    except tf.errors.NotFoundError:
        raise SystemExit(
            f"--data: {folder} holds no manifest.json. Make shards first: "
            f"tpuctl data presize {folder} shards. Without data: --data fake"
        ) from None
    except tf.errors.OpError as error:
        raise SystemExit(
            f"--data: TensorFlow could not reach {path}: {error.message.splitlines()[0]}. "
            f"Copy it here first: tpuctl data cache {folder} shards"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"--data: could not read {path}: {error}") from None
    if encode not in ("jpeg", "elements") or form != "tfrecord":
        raise SystemExit(
            f"--data: {folder} holds {encode} in {form}. This template reads JPEG in tfrecord: "
            "tpuctl data presize --encode jpeg --format tfrecord"
        )
    return manifest


class Shards:
    """Pictures of `tpuctl data presize`: TFRecords of (JPEG, label)."""

    def __init__(self, folder: str, manifest: dict):
        self.folder, self.shards = folder, manifest["shards"]
        self.side = min(manifest["options"]["size"])
        self.has_labels = len(manifest["classes"]) > 1
        self.names = list(manifest["classes"] if self.has_labels else ROTATIONS)
        self.shape = (self.side, self.side, 3)

    def __len__(self) -> int:
        return sum(shard["records"] for shard in self.files_of(0))

    def files_of(self, epoch: int) -> list[dict]:
        """The shards that an epoch reads."""
        return self.shards

    def parse(self, record):
        """A record as the (picture, label) that the model gets, bytes from 0 to 255."""
        import tensorflow as tf

        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        image = tf.image.resize_with_crop_or_pad(image, self.side, self.side)
        return image, tf.cast(example["label"], tf.int32)

    def epoch(self, epoch: int, batch_size: int, seed: int, skip: int):
        """The full batches of an epoch after the first `skip`.

        Everything follows from seed, epoch and position, so that a resumed run sees the same. What
        is skipped is read, but not decoded.
        """
        import tensorflow as tf

        rng = np.random.default_rng((seed, epoch))
        files = [os.path.join(self.folder, shard["name"]) for shard in self.files_of(epoch)]
        records = tf.data.Dataset.from_tensor_slices(rng.permutation(files)).interleave(
            tf.data.TFRecordDataset,
            cycle_length=READERS,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        records = records.shuffle(
            SHUFFLE_RECORDS, seed=int(rng.integers(2**31)), reshuffle_each_iteration=False
        )

        def example(position, record):
            image, label = self.parse(record)
            if not self.has_labels:
                label = tf.random.stateless_uniform(
                    [], (seed + epoch * len(ROTATIONS), position), 0, len(ROTATIONS), tf.int32
                )
                image = tf.image.rot90(image, label)
            return tf.ensure_shape(image, self.shape), label

        examples = records.enumerate().skip(skip * batch_size)
        examples = examples.map(example, num_parallel_calls=tf.data.AUTOTUNE)
        # Every batch is full: a TPU compiles once for one shape.
        return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


class Kept(Shards):
    """Pictures of `tpuctl data cache`: decoded, in several variants, another one in each epoch."""

    def __init__(self, folder: str, manifest: dict, classes: int | None):
        import tensorflow as tf

        self.folder, self.shards = folder, manifest["shards"]
        self.variants = manifest["options"]["variants"]
        pair = manifest["options"]["structure"]["items"]
        kinds = [leaf.get("dtype") for leaf in pair] if isinstance(pair, list) else []
        if len(kinds) != 2 or kinds[0] != "uint8" or not str(kinds[1]).startswith(("int", "uint")):
            raise SystemExit(
                f"--data: the elements kept in {folder} are {kinds}, not pairs of a uint8 picture "
                "and an integer label. Let the pipeline that is cached return those."
            )
        if not classes:
            raise SystemExit(f"--data: {folder} does not say how many classes there are: --classes")
        self.label_dtype, self.has_labels = tf.as_dtype(kinds[1]), True
        self.names = [str(number) for number in range(classes)]
        first = tf.data.TFRecordDataset(os.path.join(folder, self.shards[0]["name"]))
        self.shape = tuple(self.parse(next(iter(first)))[0].shape)
        if len(self.shape) != 3:
            raise SystemExit(
                f"--data: the elements kept in {folder} are of shape {self.shape}: batches? Cache "
                "single pictures, so that they can be shuffled."
            )

    def files_of(self, epoch: int) -> list[dict]:
        """The shards of one variant."""
        prefix = f"v{epoch % self.variants:03}-"
        return [shard for shard in self.shards if shard["name"].startswith(prefix)]

    def parse(self, record):
        """Bytes and shape of both parts, as `tpuctl data cache` writes them."""
        import tensorflow as tf

        names = ("/0", "/0#shape", "/1")
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
        example = tf.io.parse_single_example(record, features)
        shape = tf.io.decode_raw(example["/0#shape"], tf.int64)
        image = tf.reshape(tf.io.decode_raw(example["/0"], tf.uint8), shape)
        label = tf.reshape(tf.io.decode_raw(example["/1"], self.label_dtype), [])
        return image, tf.cast(label, tf.int32)


class Fake:
    """One batch that never changes: the model learns it by heart and nobody waits for input."""

    names, has_labels = list(ROTATIONS), True

    def __init__(self, side: int, batch_size: int):
        self.shape, self.rows = (side, side, 3), 10 * batch_size

    def __len__(self) -> int:
        return self.rows

    def epoch(self, epoch: int, batch_size: int, seed: int, skip: int):
        """The same, again and again."""
        import tensorflow as tf

        rng = np.random.default_rng(seed)
        labels = rng.integers(0, len(self.names), batch_size).astype(np.int32)
        images = rng.integers(0, 256, (batch_size, *self.shape), dtype=np.uint8)
        return tf.data.Dataset.from_tensors((images, labels)).repeat()


def open_data(args: argparse.Namespace) -> Shards | Fake:
    """The pictures that --data names."""
    if args.data == "fake":
        return Fake(args.image_size, args.batch_size)
    manifest = read_manifest(args.data)
    if manifest["options"]["encode"] == "elements":
        return Kept(args.data, manifest, args.classes)
    return Shards(args.data, manifest)


# ---- Model ---------------------------------------------------------------------------------------


def make_model(shape: tuple, classes: int, learning_rate: float, mirror: bool, execution: int = 1):
    """A small residual-free ConvNet: 0.4 M parameters, channels in multiples of the MXU's lanes."""
    import keras
    from keras import layers

    inputs = keras.Input(shape, dtype="uint8")
    # Bytes travel to the device, a quarter of what floats would be; it scales and mirrors them.
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    if mirror:
        x = layers.RandomFlip("horizontal")(x)
    # A stride of 4 first: most of the arithmetic of a ConvNet is in its full-size layers.
    x = layers.Conv2D(32, 7, strides=4, padding="same", use_bias=False)(x)
    for channels in (64, 128, 256):
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    # Logits stay float32 under mixed precision: a softmax in bfloat16 loses small classes.
    outputs = layers.Dense(classes, dtype="float32")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=execution,
    )
    return model


def make_example(image_size: int = 224):
    """What `tpuctl fit images` compiles: the model of `--data fake`, in any size."""
    return make_model((image_size, image_size, 3), len(ROTATIONS), 1e-3, mirror=True)


# ---- Clock, checkpoints, trace -------------------------------------------------------------------


def make_callbacks(args: argparse.Namespace, out: Path, steps_per_epoch: int, first_step: int):
    """Return (clock, saver, all callbacks); each knows the step of the whole run."""
    import keras

    class Clock(keras.callbacks.Callback):
        """Times every execution up to its loss, so that asynchronous work is counted too."""

        def __init__(self):
            super().__init__()
            self.step_s, self.epochs, self.step = [], [], first_step

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch, self.first = epoch, self.step
            self.begun = self.last = self.spoken = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            loss = float(logs["loss"])
            now, before = time.perf_counter(), self.step
            # The last execution of an epoch may hold fewer steps than the others.
            self.step = min(self.first + batch + 1, (self.epoch + 1) * steps_per_epoch)
            self.step_s.append((now - self.last) / (self.step - before))
            self.last = now
            if now - self.spoken > 2:
                self.spoken = now
                rate = args.batch_size / self.step_s[-1]
                print(f"step {self.step}: loss {loss:.4f}, {rate:,.0f} examples/s", flush=True)

        def on_epoch_end(self, epoch, logs=None):
            figures = {name: round(float(value), 4) for name, value in logs.items()}
            seconds = round(time.perf_counter() - self.begun, 4)
            steps = self.step - self.first
            self.epochs.append({"epoch": epoch + 1, "steps": steps, "seconds": seconds, **figures})
            said = ", ".join(f"{name} {value}" for name, value in figures.items())
            print(f"epoch {epoch + 1}: {said}, {seconds:.2f} s", flush=True)

    class Saver(keras.callbacks.Callback):
        """Checkpoints every so many steps, and at the end of the step in which we are told to stop.

        A checkpoint is complete or not there. SIGTERM is what a spot TPU sends before it goes.
        """

        def __init__(self, clock):
            super().__init__()
            self.clock, self.saved, self.signal = clock, first_step, None
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.stop)

        def stop(self, number, frame):
            self.signal = number
            signal.signal(number, signal.SIG_DFL)  # a second one does not wait

        def on_train_batch_end(self, batch, logs=None):
            if self.signal or self.clock.step - self.saved >= args.save_every:
                self.save()
            if self.signal:
                self.model.stop_training = True

        def save(self):
            self.saved = self.clock.step
            if keras.backend.backend() == "jax":
                # While fit runs, Keras on JAX keeps the state outside of the model.
                self.model.jax_state_sync()
            part, path = out / "part.npz", out / f"step-{self.saved:08}.npz"
            np.savez(part, *map(keras.ops.convert_to_numpy, state_of(self.model)))
            os.replace(part, path)
            for old in out.glob("step-*.npz"):
                if old != path:
                    old.unlink()

    class Trace(keras.callbacks.Callback):
        """Records what host and device do in some executions, after those that compile."""

        def on_train_batch_end(self, batch, logs=None):
            start, stop = profiler()
            done = len(clock.step_s)
            if done == 3:
                start(str(out / "trace"))
            if done == 3 + args.trace:
                stop()

    clock = Clock()
    saver = Saver(clock)
    return clock, saver, [clock, saver, *([Trace()] if args.trace else [])]


def profiler():
    """The (start, stop) that record an XSpace; read it with: tpuctl profile trace FOLDER."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop


def state_of(model) -> list:
    """All that the next step depends on: weights, random generators (dropout's), optimizer.

    Keras' save_weights leaves the random generators out; a resumed run would drop other units.
    """
    metrics = {id(variable) for variable in model.metrics_variables}
    kept = [variable for variable in model.variables if id(variable) not in metrics]
    return [*kept, *model.optimizer.variables]


def find_checkpoint(out: Path, settings: dict) -> Path | None:
    """The last checkpoint of the same run; the traces of another run are removed."""
    record = out / "settings.json"
    found = sorted(out.glob("step-*.npz"))
    if found and record.exists() and json.loads(record.read_text()) == settings:
        return found[-1]
    for path in found:
        path.unlink()
    record.write_text(json.dumps(settings))
    return None


def check_space(out: Path, model) -> None:
    """Fail before the training, not after it, where its results would not fit on the disk."""
    # The model, its checkpoint and the next one; Adam keeps two more numbers for each weight.
    needed = 4 * model.count_params() * (1 + 3 + 3) + 2**20
    free = shutil.disk_usage(out).free
    if free < needed:
        raise SystemExit(
            f"No space left for the results: {out} has {free / 2**20:.0f} MiB free and needs "
            f"{needed / 2**20:.0f} MiB. Free some space, or choose another --out."
        )


# ---- Proof: which devices executed the steps -----------------------------------------------------


def count_steps(strategy):
    """Let every replica of TensorFlow count steps and examples in a variable on its own device."""
    import tensorflow as tf

    with strategy.scope():
        counter = tf.Variable(
            [0, 0],
            dtype=tf.int64,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    run = strategy.run

    def counted_run(step, args=(), **more):
        def counted(*args):
            counter.assign_add(tf.stack([1, tf.shape(tf.nest.flatten(args)[0], tf.int64)[0]]))
            return step(*args)

        return run(counted, args=args, **more)

    strategy.run = counted_run
    return counter


def executed_by(model, strategy, counter, first_step: int, per_replica: int) -> list[dict]:
    """What every device says it did, read from the device itself."""
    if strategy is not None:
        parts = [
            (p.device, p.numpy().tolist()) for p in strategy.experimental_local_results(counter)
        ]
        return [
            {"device": device.partition("/task:0")[2], "steps": steps, "examples": examples}
            for device, (steps, examples) in parts
        ]
    # JAX: each device holds a copy of the step number, which its own execution counted up.
    shards = model.optimizer.iterations.value.addressable_shards
    steps = [(str(shard.device), int(shard.data) - first_step) for shard in shards]
    return [{"device": d, "steps": count, "examples": count * per_replica} for d, count in steps]


# ---- Figures -------------------------------------------------------------------------------------


def summarise(step_s: list[float], batch_size: int) -> dict:
    """Step times without the first execution, which compiles."""
    rest = step_s[1:] or step_s
    if not rest:
        return {"first_step_ms": None, "step_ms": None, "examples_per_s": None}
    ordered = sorted(rest)
    return {
        "first_step_ms": round(step_s[0] * 1e3, 2),
        "step_ms": {
            "mean": round(statistics.fmean(rest) * 1e3, 3),
            "p50": round(statistics.median(rest) * 1e3, 3),
            "p95": round(ordered[int(0.95 * (len(ordered) - 1))] * 1e3, 3),
        },
        "examples_per_s": round(batch_size * len(rest) / sum(rest), 1),
    }


def write_result(out: Path, result: dict) -> None:
    """Leave the whole result or none."""
    part = out / "result.json.part"
    part.write_text(json.dumps(result, indent=2))
    os.replace(part, out / "result.json")


# ---- One run, top to bottom ----------------------------------------------------------------------


def read_flags() -> argparse.Namespace:
    """Check the flags, and tell the framework what it reads once, when it is imported."""
    args = parser.parse_args()
    at_least_1 = ("steps", "epochs", "batch_size", "steps_per_execution", "save_every", "classes")
    for name in (*at_least_1, "image_size", "trace", "cpu_devices"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.seed < 0:
        parser.error("--seed must be at least 0")
    backend = os.environ.setdefault("KERAS_BACKEND", FRAMEWORKS[0])
    if backend not in FRAMEWORKS:
        parser.error(f"KERAS_BACKEND={backend} is not for this template: use {FRAMEWORKS}")
    if args.cpu_devices:
        flag = f"--xla_force_host_platform_device_count={args.cpu_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return args


def make_folder(out: Path) -> None:
    """Have a place for the results, or say why not before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out: {error}") from None


def main() -> None:
    """Read the flags, open the devices, train, and say how fast and how well it went."""
    args = read_flags()
    out = Path(args.out)
    make_folder(out)

    try:
        import keras
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}. Install it: pip install keras tensorflow") from None

    keras.utils.set_random_seed(args.seed)
    scope, replicas, devices, strategy = open_strategy(args.strategy, args.cpu_devices)
    data = open_data(args)
    if args.batch_size % replicas:
        near = max(1, round(args.batch_size / replicas)) * replicas
        parser.error(
            f"--batch-size {args.batch_size} does not divide over {replicas} replicas; "
            f"--batch-size {near} would"
        )
    if args.steps_per_execution > 1 and type(strategy).__name__ == "MirroredStrategy":
        # Keras 3.15 with TensorFlow 2.21: "You must feed a value for placeholder tensor".
        parser.error("--steps-per-execution above 1 fails under --strategy mirrored; leave it out")
    # A small data set makes one batch, of as many as the replicas can share.
    batch_size = min(args.batch_size, len(data)) // replicas * replicas
    if not batch_size:
        raise SystemExit(f"--data: {replicas} replicas need at least {replicas} examples.")
    steps_per_epoch = len(data) // batch_size
    total_steps = args.steps or args.epochs * steps_per_epoch
    learning_rate = args.learning_rate * batch_size / BASE_BATCH_SIZE
    on_tpu = any("TPU" in device.upper() for device in devices)
    if args.dtype == "bfloat16" or (args.dtype == "auto" and on_tpu):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    task = "rotation" if data.names == list(ROTATIONS) else "classes"

    print(f"framework: keras {keras.__version__} on {keras.backend.backend()}")
    print(f"devices: {', '.join(devices)} ({replicas} replica{'s' * (replicas > 1)})")
    print(f"arithmetic: {keras.mixed_precision.dtype_policy().compute_dtype}")
    print(f"data: {len(data)} pictures of {data.shape}; {task}: {', '.join(data.names)}")
    print(f"batch: {batch_size} global, {batch_size // replicas} per replica")
    rate = f"{args.learning_rate} x {batch_size}/{BASE_BATCH_SIZE} = {learning_rate:g}"
    print(f"learning rate: {rate}")
    print(f"steps: {total_steps}, {steps_per_epoch} in an epoch", flush=True)

    with scope:
        shape, mirror = data.shape, data.has_labels
        execution = args.steps_per_execution
        model = make_model(shape, len(data.names), learning_rate, mirror, execution)
        model.optimizer.build(model.trainable_variables)  # a checkpoint may follow
    settings = {**vars(args), "epochs": None, "steps": None, "save_every": None, "trace": None}
    checkpoint = find_checkpoint(out, settings)
    first_step = 0
    if checkpoint:
        with np.load(checkpoint) as saved:
            for variable, name in zip(state_of(model), saved.files, strict=True):
                variable.assign(saved[name])
        first_step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        print(f"going on after step {first_step} ({checkpoint})", flush=True)

    check_space(out, model)
    counter = count_steps(strategy) if strategy else None
    clock, saver, callbacks = make_callbacks(args, out, steps_per_epoch, first_step)
    while clock.step < total_steps and not saver.signal:
        epoch, done = divmod(clock.step, steps_per_epoch)
        last = min(steps_per_epoch, total_steps - epoch * steps_per_epoch)
        try:
            model.fit(
                data.epoch(epoch, batch_size, args.seed, skip=done),
                steps_per_epoch=last - done,
                initial_epoch=epoch,
                epochs=epoch + 1,
                callbacks=callbacks,
                shuffle=False,  # the data shuffles itself
                verbose=0,
            )
        except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
            raise SystemExit(
                f"--data: {args.data} is damaged ({error.message}). "
                "See where: tpuctl data verify --deep"
            ) from None
    if saver.signal:
        saver.save()  # it may have come between two epochs
        print(f"stopped after step {clock.step}; the same command goes on from there", flush=True)
        sys.exit(128 + saver.signal)
    executed = executed_by(model, strategy, counter, first_step, batch_size // replicas)
    part = out / "part.keras"
    model.save(part)
    os.replace(part, out / "model.keras")

    result = {
        "template": TEMPLATE,
        "framework": f"keras-{keras.backend.backend()}",
        "strategy": args.strategy,
        "devices": devices,
        "replicas": replicas,
        "task": task,
        "classes": data.names,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "steps": total_steps,
        "resumed_after_step": first_step,
        "steps_per_epoch": steps_per_epoch,
        "epochs": clock.epochs,
        **summarise(clock.step_s, batch_size),
        "executed": executed,
        "model": str(out / "model.keras"),
    }
    write_result(out, result)
    for path in out.glob("step-*.npz"):
        path.unlink()
    if result["step_ms"]:
        first_ms = result["first_step_ms"]
        print(f"step: {result['step_ms']['p50']} ms (first, with compilation: {first_ms} ms)")
        print(f"speed: {result['examples_per_s']} examples/s")
    for entry in executed:
        print(f"{entry['device']} executed {entry['steps']} steps, {entry['examples']} examples")


if __name__ == "__main__":
    main()
