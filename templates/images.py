"""Train an image classifier on shards made by `tpuctl data presize`.

    python images.py --data shards --epochs 2     # on whatever is here
    python images.py --data fake --steps 2        # no data, any laptop
    python images.py --data fake --steps 2 --cpu-devices 2  # two replicas

Class folders become labels. Photographs without labels train on a task
that needs none: how far was this picture turned, by 0, 90, 180 or 270
degrees (Gidaris et al. 2018, arXiv 1803.07728).

Keras 3; KERAS_BACKEND=tensorflow (default) or jax. The input pipeline is
tf.data under both. Interrupt it whenever you like: the same command goes
on after the last complete epoch.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

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
parser.add_argument("--image-size", type=int, default=224, help="only for --data fake")
parser.add_argument("--learning-rate", type=float, default=1e-3, help="for a batch of 32; scaled")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into so many pretended devices")

# What the Keras code below runs on; `tpuctl launch` picks from these.
FRAMEWORKS = ("tensorflow", "jax")
ROTATIONS = ("0", "90", "180", "270")
# Records are 5 to 150 kB; 1,000 of them mix the classes and stay below 150 MB.
SHUFFLE_RECORDS = 1000


# ---- Devices and strategy ------------------------------------------------------------------------


def open_strategy(name: str, cpu_devices: int | None):
    """Return (scope to build the model in, replicas, device names)."""
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
    gpus = tf.config.list_logical_devices("GPU")
    if name == "auto":
        name = "mirrored" if len(gpus) > 1 or (cpu_devices or 1) > 1 else "default"
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
        devices = gpus or tf.config.list_logical_devices("CPU")
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    elif name == "default":
        strategy = tf.distribute.get_strategy()
        devices = gpus or tf.config.list_logical_devices("CPU")
        return strategy.scope(), 1, [devices[0].name]
    else:
        raise SystemExit(f"--strategy {name} is for KERAS_BACKEND=jax; this is TensorFlow.")
    return strategy.scope(), strategy.num_replicas_in_sync, list(strategy.extended.worker_devices)


def open_jax_strategy(name: str):
    """Spread the batch over all devices by data parallelism, or use the first."""
    import jax
    import keras

    devices = jax.devices()
    if name not in ("auto", "mesh", "single", "cpu", "default"):
        raise SystemExit(f"--strategy {name} is for KERAS_BACKEND=tensorflow; this is JAX.")
    if len(devices) > 1 and name in ("auto", "mesh"):
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return contextlib.nullcontext(), len(devices), [str(device) for device in devices]
    return contextlib.nullcontext(), 1, [str(devices[0])]


# ---- Data ----------------------------------------------------------------------------------------


def read_manifest(folder: str) -> dict:
    """Read which files belong to the data set; anything else in the folder is not ours."""
    import tensorflow as tf

    path = os.path.join(folder, "manifest.json")
    try:
        is_there = tf.io.gfile.exists(path)
    except tf.errors.OpError as error:
        raise SystemExit(
            f"--data: TensorFlow could not reach {path}: {error.message.splitlines()[0]}. "
            f"Copy it here first: tpuctl data cache {folder} shards"
        ) from None
    if not is_there:
        raise SystemExit(
            f"{folder} holds no manifest.json. "
            f"Make shards first: tpuctl data presize {folder} shards"
        )
    with tf.io.gfile.GFile(path) as file:
        manifest = json.load(file)
    if manifest["options"]["encode"] != "jpeg":
        raise SystemExit(f"{folder} holds {manifest['options']['encode']} records, not JPEG.")
    return manifest


def make_dataset(folder: str, manifest: dict, batch_size: int, seed: int):
    """Endless batches of (uint8 images, labels), shuffled anew every epoch."""
    import tensorflow as tf

    side = min(manifest["options"]["size"])
    labelled = len(manifest["classes"]) > 1
    files = [os.path.join(folder, shard["name"]) for shard in manifest["shards"]]

    def parse(record):
        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        image = tf.image.resize_with_crop_or_pad(image, side, side)
        if labelled:
            return tf.image.random_flip_left_right(image), tf.cast(example["label"], tf.int32)
        turns = tf.random.uniform([], 0, len(ROTATIONS), tf.int32)
        return tf.ensure_shape(tf.image.rot90(image, turns), (side, side, 3)), turns

    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.shuffle(SHUFFLE_RECORDS, seed=seed).repeat()
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    # Every batch is full: a TPU compiles once for one shape.
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def make_fake_dataset(size: int, classes: int, batch_size: int, seed: int):
    """One batch that never changes: the model learns it by heart and nobody waits for input."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, batch_size).astype(np.int32)
    images = rng.integers(0, 256, (batch_size, size, size, 3), dtype=np.uint8)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


# ---- Model ---------------------------------------------------------------------------------------


def make_model(size: int, classes: int, learning_rate: float):
    """A small residual-free ConvNet: 0.4 M parameters, channels in multiples of the MXU's lanes."""
    import keras
    from keras import layers

    inputs = keras.Input((size, size, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
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
    )
    return model


def make_example(image_size: int = 224):
    """What `tpuctl fit images` compiles: the model of `--data fake`, in any size."""
    return make_model(image_size, len(ROTATIONS), learning_rate=1e-3)


# ---- Clock, checkpoints, result ------------------------------------------------------------------


def make_callbacks(out: Path):
    """Return (callbacks, clock): step times, and a checkpoint that is complete or not there."""
    import keras

    class Clock(keras.callbacks.Callback):
        """Times every step up to its loss, so that asynchronous work is counted too."""

        def __init__(self):
            super().__init__()
            self.step_s, self.epochs = [], []

        def on_epoch_begin(self, epoch, logs=None):
            self.last = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])
            now = time.perf_counter()
            self.step_s.append(now - self.last)
            self.last = now

        def on_epoch_end(self, epoch, logs=None):
            figures = {name: round(float(value), 4) for name, value in logs.items()}
            self.epochs.append({"epoch": epoch + 1, **figures})
            print(f"epoch {epoch + 1}: " + ", ".join(f"{k} {v}" for k, v in figures.items()))

    class Checkpoint(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            part, path = out / "part.weights.h5", out / f"epoch-{epoch + 1:04}.weights.h5"
            self.model.save_weights(part, overwrite=True)
            os.replace(part, path)
            for old in out.glob("epoch-*.weights.h5"):
                if old != path:
                    old.unlink()

    clock = Clock()
    return [clock, Checkpoint()], clock


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


def find_checkpoint(out: Path, settings: dict) -> Path | None:
    """The last complete epoch of the same run; the traces of another run are removed."""
    record = out / "settings.json"
    found = sorted(out.glob("epoch-*.weights.h5"))
    if found and record.exists() and json.loads(record.read_text()) == settings:
        return found[-1]
    for path in found:
        path.unlink()
    record.write_text(json.dumps(settings))
    return None


def summarise(clock, batch_size: int) -> dict:
    """Step times without the first, which compiles."""
    first, rest = clock.step_s[:1], clock.step_s[1:] or clock.step_s
    if not rest:
        return {"first_step_ms": None, "step_ms": None, "examples_per_s": None}
    ordered = sorted(rest)
    return {
        "first_step_ms": round(first[0] * 1e3, 2),
        "step_ms": {
            "mean": round(statistics.fmean(rest) * 1e3, 2),
            "p50": round(statistics.median(rest) * 1e3, 2),
            "p95": round(ordered[math.ceil(0.95 * len(ordered)) - 1] * 1e3, 2),
        },
        "examples_per_s": round(batch_size * len(rest) / sum(rest), 1),
    }


def write_result(out: Path, result: dict) -> None:
    """Leave the whole result or none."""
    part = out / "result.json.part"
    part.write_text(json.dumps(result, indent=2))
    os.replace(part, out / "result.json")


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


# ---- One run, top to bottom ----------------------------------------------------------------------


def main() -> None:
    """Read the flags, open the devices, train, and say how fast it went."""
    args = parser.parse_args()
    for name in ("steps", "epochs", "batch_size", "cpu_devices"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.cpu_devices:
        # JAX reads this once, when it starts.
        flag = f"--xla_force_host_platform_device_count={args.cpu_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    import keras

    keras.utils.set_random_seed(args.seed)
    scope, replicas, devices = open_strategy(args.strategy, args.cpu_devices)

    fake = args.data == "fake"
    manifest = None if fake else read_manifest(args.data)
    names = list(ROTATIONS) if fake or len(manifest["classes"]) < 2 else manifest["classes"]
    size = args.image_size if fake else min(manifest["options"]["size"])
    records = None if fake else sum(shard["records"] for shard in manifest["shards"])
    if args.batch_size % replicas:
        near = max(1, round(args.batch_size / replicas)) * replicas
        parser.error(
            f"--batch-size {args.batch_size} does not divide over {replicas} replicas; "
            f"--batch-size {near} would"
        )
    # A small data set makes one batch, of as many as the replicas can share.
    batch_size = args.batch_size if fake else min(args.batch_size, records) // replicas * replicas
    if not batch_size:
        raise SystemExit(f"--data: {replicas} replicas need at least {replicas} examples.")
    steps_per_epoch = args.steps or (10 if fake else records // batch_size)
    epochs = 1 if args.steps else args.epochs
    learning_rate = args.learning_rate * batch_size / 32

    print(f"framework: keras {keras.__version__} on {keras.backend.backend()}")
    print(f"devices: {', '.join(devices)} ({replicas} replica{'s' * (replicas > 1)})")
    print(f"task: {'rotation' if names == list(ROTATIONS) else 'classes'} ({', '.join(names)})")
    print(f"batch: {batch_size} global, {batch_size // replicas} per replica")
    print(f"learning rate: {args.learning_rate} x {batch_size}/32 = {learning_rate:g}")
    print(f"epochs: {epochs}, steps in each: {steps_per_epoch}")

    if any("TPU" in device.upper() for device in devices):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with scope:
        model = make_model(size, len(names), learning_rate)
        model.optimizer.build(model.trainable_variables)  # a checkpoint may follow
    dataset = (
        make_fake_dataset(size, len(names), batch_size, args.seed)
        if fake
        else make_dataset(args.data, manifest, batch_size, args.seed)
    )

    settings = {**vars(args), "epochs": None, "plan_id": manifest and manifest.get("plan_id")}
    checkpoint = find_checkpoint(out, settings)
    epochs_done = int(checkpoint.name.split("-")[1].split(".")[0]) if checkpoint else 0
    if checkpoint:
        model.load_weights(checkpoint)
        print(f"going on after epoch {epochs_done} ({checkpoint})")

    check_space(out, model)
    strategy = model.distribute_strategy if keras.backend.backend() == "tensorflow" else None
    counter = count_steps(strategy) if strategy else None
    first_step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    callbacks, clock = make_callbacks(out)
    model.fit(
        dataset,
        epochs=epochs,
        initial_epoch=epochs_done,
        steps_per_epoch=steps_per_epoch,
        callbacks=callbacks,
        shuffle=False,  # the data set shuffles itself
        verbose=0,
    )
    executed = executed_by(model, strategy, counter, first_step, batch_size // replicas)
    part = out / "part.keras"
    model.save(part)
    os.replace(part, out / "model.keras")

    result = {
        "template": "images",
        "framework": f"keras-{keras.backend.backend()}",
        "strategy": args.strategy,
        "devices": devices,
        "replicas": replicas,
        "task": "rotation" if names == list(ROTATIONS) else "classes",
        "classes": names,
        "batch_size": batch_size,
        "steps_per_epoch": steps_per_epoch,
        "epochs": clock.epochs,
        **summarise(clock, batch_size),
        "executed": executed,
        "model": str(out / "model.keras"),
    }
    write_result(out, result)
    for path in out.glob("epoch-*.weights.h5"):
        path.unlink()
    if result["step_ms"]:
        first_ms = result["first_step_ms"]
        print(f"step: {result['step_ms']['p50']} ms (first, with compilation: {first_ms} ms)")
        print(f"speed: {result['examples_per_s']} examples/s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
