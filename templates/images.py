"""Train an image classifier on shards made by `tpuctl data presize` or `data cache`.

    python images.py --data shards --epochs 2     # on whatever is here
    python images.py --data fake --steps 2 --cpu-devices 2  # no data, any laptop

A tenth of the images is held out and tells the accuracy after each epoch. --find-lr suggests a
learning rate, --anneal cosine goes up to it and down again (one cycle). Class folders become
labels, and the device mirrors half of the images. Images without labels train on a task that needs
none: was this image turned by 0, 90, 180 or 270 degrees (arXiv 1803.07728)?

KERAS_BACKEND=tensorflow (default) or jax; the input is tf.data under both. The same command resumes
an interrupted run, with the same weights. How long the device waited is hidden in Keras' compiled
step: tpuctl launch and tpuctl profile run -- CMD tell it. Measured: 240 images of scikit-learn's
digits 0, 1 and 2, --batch-size 24 --epochs 5 on two vCPUs: 100 % of the 24 held out.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import time
import zlib
from pathlib import Path

import numpy as np

# Keras reads its backend once, when it is imported. `tpuctl launch` picks from FRAMEWORKS.
FRAMEWORKS = ("tensorflow", "jax")
if os.environ.setdefault("KERAS_BACKEND", "tensorflow") not in FRAMEWORKS:
    raise SystemExit(f"KERAS_BACKEND={os.environ['KERAS_BACKEND']} is not for this template.")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all replicas together")
parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam; never scaled")
parser.add_argument("--classes", type=int, help="how many; only for shards of tpuctl data cache")
parser.add_argument("--image-size", type=int, default=224, help="only for --data fake")
parser.add_argument("--anneal", default="none", choices=["none", "cosine"], help="one cycle or not")
parser.add_argument("--find-lr", action="store_true", help="only look for a learning rate")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="training/images", help="checkpoint, model, result.json")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--restore", help="begin with the weights of this model.keras")
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--steps-per-execution", type=int, default=1, help="20 keeps a TPU busy")
parser.add_argument("--trace", type=int, help="record this many executions into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")
parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
parser.add_argument("--strategy", default="auto", help="how to spread a batch over devices",
                    choices=["auto", "default", "mirrored", "tpu-local", "tpu-grpc", "tpu-name",
                             "mesh", "single", "cpu"])  # fmt: skip

ROTATIONS = ("0", "90", "180", "270")
# Records are 5 to 150 kB; 1,000 of them mix the classes and stay below 150 MB.
SHUFFLE_RECORDS = 1000
# Every tenth record of a shard is not trained on: each epoch ends with a validation on them.
HELD_OUT = 10
# Shards that are read at once; fixed, so that the order is the same on every machine.
READERS = 4


class Shards:
    """Images of `tpuctl data presize`: TFRecords of (JPEG, label)."""

    def __init__(self, args: argparse.Namespace, manifest: dict):
        self.folder, self.variants = args.data, [manifest["shards"]]
        self.about = zlib.crc32(json.dumps(manifest["shards"]).encode())
        self.side = min(manifest["options"]["size"])
        self.has_labels = len(manifest["classes"]) > 1
        self.names = list(manifest["classes"] if self.has_labels else ROTATIONS)
        self.shape = (self.side, self.side, 3)

    def __len__(self) -> int:
        return sum(one["records"] - one["records"] // HELD_OUT for one in self.variants[0])

    def parse(self, record):
        """A record as the (image, label) that the model gets, bytes from 0 to 255."""
        kinds = {"image": tf.string, "label": tf.int64}
        features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        image = tf.image.resize_with_crop_or_pad(image, self.side, self.side)
        return image, tf.cast(example["label"], tf.int32)

    def validation(self, most: int, replicas: int):
        """The held-out records in full batches; None where they do not make one."""
        held_out = sum(shard["records"] // HELD_OUT for shard in self.variants[0])
        batch_size = min(most, held_out) // replicas * replicas
        if not batch_size:
            return None
        tested = held_out // batch_size * batch_size
        print(f"tested on {tested} of {held_out} held out: full batches")
        # Without it Keras 3.15 on TensorFlow counts a batch too many, and half of the accuracy.
        exactly = tf.data.experimental.assert_cardinality(held_out // batch_size)
        return self.epoch(0, batch_size, seed=0, held_out=True).apply(exactly)

    def epoch(self, epoch: int, batch_size: int, seed: int, skip: int = 0, held_out: bool = False):
        """The full batches of an epoch after the first `skip`, or of what is held out.

        Everything follows from seed, epoch and position, so that a resumed run sees the same.
        """
        rng = np.random.default_rng((seed, epoch))
        shards = rng.permutation(self.variants[epoch % len(self.variants)])
        files = [os.path.join(self.folder, shard["name"]) for shard in shards]

        def records_of(file):
            numbered = tf.data.TFRecordDataset(file).enumerate(1)
            return numbered.filter(lambda number, _: (number % HELD_OUT == 0) == held_out)

        def example(position, numbered):
            image, label = self.parse(numbered[1])
            if not self.has_labels:
                turn = (seed + epoch * len(ROTATIONS), position)
                label = tf.random.stateless_uniform([], turn, 0, len(ROTATIONS), tf.int32)
                image = tf.image.rot90(image, label)
            return tf.ensure_shape(image, self.shape), label

        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            records_of, READERS, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        order = int(rng.integers(2**31))
        records = records.shuffle(SHUFFLE_RECORDS, order, reshuffle_each_iteration=False)
        # What is skipped is read, but not decoded.
        records = records.enumerate().skip(skip * batch_size)
        examples = records.map(example, num_parallel_calls=tf.data.AUTOTUNE)
        # Every batch is full: a TPU compiles once for one shape.
        return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


class Kept(Shards):
    """Images of `tpuctl data cache`: decoded, in several variants, another one in each epoch."""

    def __init__(self, args: argparse.Namespace, manifest: dict):
        folder, shards, classes = args.data, manifest["shards"], args.classes
        prefixes = [f"v{number:03}-" for number in range(manifest["options"]["variants"])]
        self.variants = [[s for s in shards if s["name"].startswith(p)] for p in prefixes]
        self.folder, self.about = folder, zlib.crc32(json.dumps(shards).encode())
        pair = manifest["options"]["structure"]["items"]
        kinds = [leaf.get("dtype") for leaf in pair] if isinstance(pair, list) else []
        if len(kinds) != 2 or kinds[0] != "uint8" or not str(kinds[1]).startswith(("int", "uint")):
            parser.error(f"--data: {folder} holds {kinds}, not a uint8 image and an integer label")
        if not classes:
            parser.error(f"--data: {folder} does not say how many classes there are: --classes")
        self.label_dtype, self.has_labels = tf.as_dtype(kinds[1]), True
        self.names = [str(number) for number in range(classes)]
        first = tf.data.TFRecordDataset(os.path.join(folder, shards[0]["name"]))
        self.shape = tuple(self.parse(next(iter(first)))[0].shape)
        if len(self.shape) != 3:
            parser.error(f"--data: {folder} holds elements of shape {self.shape}, not images")

    def parse(self, record):
        """Bytes and shape of both parts, as `tpuctl data cache` writes them."""
        names = ("/0", "/0#shape", "/1")
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
        example = tf.io.parse_single_example(record, features)
        shape = tf.io.decode_raw(example["/0#shape"], tf.int64)
        image = tf.reshape(tf.io.decode_raw(example["/0"], tf.uint8), shape)
        label = tf.reshape(tf.io.decode_raw(example["/1"], self.label_dtype), [])
        return image, tf.cast(label, tf.int32)


class Fake:
    """One batch that never changes: the model memorises it and never waits for input."""

    names, has_labels = list(ROTATIONS), True

    def __init__(self, side: int, batch_size: int):
        self.shape, self.rows, self.about = (side, side, 3), 10 * batch_size, f"fake {side}"

    def __len__(self) -> int:
        return self.rows

    def validation(self, most: int, replicas: int) -> None:
        """Nothing is held out."""

    def epoch(self, epoch: int, batch_size: int, seed: int, skip: int = 0):
        """The same, again and again."""
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, len(self.names), batch_size).astype(np.int32)
        images = rng.integers(0, 256, (batch_size, *self.shape), dtype=np.uint8)
        return tf.data.Dataset.from_tensors((images, labels)).repeat()


def open_data(args: argparse.Namespace) -> Shards | Fake:
    """The images that --data names; only what the manifest lists belongs to a data set."""
    if args.data == "fake":
        return Fake(args.image_size, args.batch_size)
    place = os.path.join(args.data, "manifest.json")
    try:
        with tf.io.gfile.GFile(place) as file:
            manifest = json.load(file)
        encode, form = manifest["options"]["encode"], manifest["options"]["format"]
    except (tf.errors.OpError, KeyError, TypeError, ValueError) as error:
        parser.error(f"--data: {place}: {error}. tpuctl data presize makes it; or use --data fake")
    if encode not in ("jpeg", "elements") or form != "tfrecord":
        how = "tpuctl data presize --encode jpeg --format tfrecord"
        parser.error(f"--data: {args.data} holds {encode} in {form}, not JPEG in tfrecord: {how}")
    return (Kept if encode == "elements" else Shards)(args, manifest)


def sweep(args: argparse.Namespace, model: keras.Model, batches: tf.data.Dataset) -> list[float]:
    """The losses of steps whose rate rises until they explode."""
    losses = []

    def note(step: int, logs: dict) -> None:
        losses.append(logs["loss"])
        model.stop_training = not losses[-1] < 4 * min(losses)

    # An epoch for each step, because Keras sets rates and reports losses once in an epoch.
    callbacks = [keras.callbacks.LearningRateScheduler(lambda step, _: 1e-6 * 1.15**step)]
    callbacks += [keras.callbacks.LambdaCallback(on_epoch_end=note)]
    model.fit(batches, steps_per_epoch=1, epochs=args.steps, callbacks=callbacks, verbose=0)
    return losses


def suggest_rate(args: argparse.Namespace, losses: list[float]) -> None:
    """Say where the smoothed loss fell fastest, before it explodes; write lr.json and lr.png."""
    rates = 1e-6 * 1.15 ** np.arange(len(losses))
    losses = np.nan_to_num(losses, nan=1e9, posinf=1e9).tolist()  # JSON has neither
    smooth = np.array([*itertools.accumulate(losses, lambda mean, loss: 0.9 * mean + 0.1 * loss)])
    lowest = int(np.argmin(smooth))
    best = float(rates[np.argmin(np.diff(smooth[: lowest + 2], append=np.inf))])
    found = {"rates": rates.tolist(), "losses": losses, "suggested": best}
    Path(args.out, "lr.json").write_text(json.dumps(found, indent=2))
    how = "falls fastest" if lowest else "is the lowest tried: the loss never fell"
    print(f"learning rate: {best:.3g} {how}, at a batch of {args.batch_size}")
    with contextlib.suppress(ModuleNotFoundError):
        import matplotlib.pyplot as plt

        plt.semilogx(rates, smooth, label="loss, smoothed")
        plt.axvline(best, linestyle="--", label=f"suggested: {best:.3g}")
        # Where the loss explodes, the rest would be a flat line at the bottom.
        plt.gca().set(xlabel="learning rate", ylabel="loss", ylim=(0, 1.5 * smooth[0]))
        plt.legend()
        plt.savefig(Path(args.out, "lr.png"))


def make_model(shape: tuple, classes: int, rate, mirror: bool):
    """A small residual-free ConvNet: 0.4 M parameters, channels in multiples of the MXU's lanes."""
    inputs = keras.Input(shape, dtype="uint8")
    # Bytes travel to the device, a quarter of what floats would be; it scales and mirrors them.
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    if mirror:
        x = layers.RandomFlip("horizontal")(x)
    # A stride of 4 first: most of the arithmetic of a ConvNet is in its full-size layers.
    x = layers.Conv2D(32, 7, strides=4, padding="same", use_bias=False)(x)
    for channels in (64, 128, 256):
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    # Logits stay float32 under mixed precision: a softmax in bfloat16 loses small classes.
    model = keras.Model(inputs, layers.Dense(classes, dtype="float32")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def make_example(image_size: int = 224):
    """What `tpuctl fit images` compiles: the model of `--data fake`, in any size."""
    return make_model((image_size, image_size, 3), len(ROTATIONS), 1e-3, mirror=True)


# ---- Devices, steps and one run ------------------------------------------------------------------
def open_devices(args: argparse.Namespace) -> list[str]:
    """Spread what follows over the devices; return the names of those that share each batch."""
    name, backend = args.strategy, keras.backend.backend()
    if name.startswith(("mirrored", "tpu") if backend == "jax" else ("mesh", "single", "cpu")):
        parser.error(f"--strategy {name} is not one of KERAS_BACKEND={backend}")
    if backend == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", args.cpu_devices or -1)
        devices = jax.devices() if name in ("auto", "mesh") else jax.devices()[:1]
        if len(devices) > 1:
            keras.distribution.set_distribution(keras.distribution.DataParallel())
        return [str(device) for device in devices]
    if args.cpu_devices:
        parts = [tf.config.LogicalDeviceConfiguration()] * args.cpu_devices
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    if name.startswith("tpu"):
        # "local" means the chips of this machine; otherwise TPU_NAME and its relatives count.
        connect = tf.distribute.cluster_resolver.TPUClusterResolver.connect
        strategy = tf.distribute.TPUStrategy(connect("local" if name == "tpu-local" else None))
        tf.distribute.experimental_set_strategy(strategy)
        return list(strategy.extended.worker_devices)
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    devices = [device.name for device in (found if name in ("auto", "mirrored") else found[:1])]
    if len(devices) > 1:
        if args.steps_per_execution > 1:  # so with Keras 3.15 and TensorFlow 2.21
            parser.error("--steps-per-execution above 1 fails under --strategy mirrored")
        tf.distribute.experimental_set_strategy(tf.distribute.MirroredStrategy(devices))
    return devices


def profiler():
    """Return what starts and what stops a trace; read it with: tpuctl profile trace FOLDER."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    return tf.profiler.experimental.start, tf.profiler.experimental.stop


class Steps(keras.callbacks.Callback):
    """Times steps, saves checkpoints (BackupAndRestore forgets dropout's state), heeds signals."""

    def __init__(self, args: argparse.Namespace, model: keras.Model, settings: str) -> None:
        super().__init__()
        self.args, self.settings, self.path = args, settings, Path(args.out, "checkpoint.npz")
        self.step, self.executions, self.seconds, self.signals = 0, 0, [], []
        for number in (signal.SIGINT, signal.SIGTERM):  # a spot TPU gets SIGTERM before it goes
            signal.signal(number, lambda number, frame: self.signals.append(number))
        if self.path.exists():
            with np.load(self.path) as saved:
                was, now = (set(str(text).split(", ")) for text in (saved["settings"], settings))
                if was != now:
                    was, now = (", ".join(sorted(d)) or "nothing" for d in (was - now, now - was))
                    parser.error(f"--out has a run with {was}, not {now}: --overwrite?")
                for number, variable in enumerate([*model.variables, *model.optimizer.variables]):
                    variable.assign(saved[f"arr_{number}"])
                self.step = int(saved["step"])
        elif self.path.with_name("model.keras").exists() and not args.overwrite:
            parser.error(f"{args.out} has a model and no checkpoint: --overwrite?")

    def on_train_batch_begin(self, batch, logs=None):
        """Start the clock, and the trace after the executions that compile."""
        if self.args.trace and self.executions == 3:
            profiler()[0](str(self.path.with_name("trace")))
        self.batch, self.started = batch, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stop the clock; the last execution of an epoch may hold fewer steps than the others."""
        float(logs["loss"])  # waits for the device
        done = min(batch + 1, self.params["steps"]) - self.batch
        self.step, self.executions = self.step + done, self.executions + 1
        if self.args.trace and self.executions == 3 + self.args.trace:
            profiler()[1]()
        self.seconds += [(time.perf_counter() - self.started) / done] * done
        if self.signals or self.step % self.args.save_every < done:
            self.save()
        if self.signals:
            print(f"stopped after step {self.step}: run it again, without --overwrite, to continue")
            raise SystemExit(128 + self.signals[0])

    def save(self) -> None:
        """Replace the checkpoint in one go: a kill leaves the old one or the new one."""
        variables = [*self.model.variables, *self.model.optimizer.variables]
        arrays, part = map(keras.ops.convert_to_numpy, variables), self.path.with_name("part.npz")
        np.savez(part, *arrays, step=self.step, settings=self.settings)
        os.replace(part, self.path)


def main() -> None:
    """Read the flags, open the devices, train, and write down how fast and how well it went."""
    args = parser.parse_args()
    for name in [n for n, v in vars(args).items() if type(v) is int and v < (n != "seed")]:
        parser.error(f"--{name.replace('_', '-')} must be at least {int(name != 'seed')}")
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    keras.utils.set_random_seed(args.seed)
    devices = open_devices(args)
    data, replicas = open_data(args), len(devices)
    # A small data set makes one batch, of as many as the replicas can share.
    batch = min(args.batch_size, len(data)) // replicas * replicas
    if args.batch_size % replicas or not batch:
        parser.error(f"--batch-size must be a multiple of {replicas}; there are {len(data)} images")
    share, steps_per_epoch = batch // replicas, len(data) // batch
    args.steps = args.steps or (120 if args.find_lr else args.epochs * steps_per_epoch)
    if args.dtype == "bfloat16" or (args.dtype == "auto" and "TPU" in devices[0].upper()):
        keras.config.set_dtype_policy("mixed_bfloat16")
    rate = args.learning_rate
    if args.anneal == "cosine" and not args.find_lr:
        decay, up = keras.optimizers.schedules.CosineDecay, 0.3 * args.steps  # arXiv 1803.09820
        rate = decay(rate / 25, args.steps - up, 1e-4, warmup_target=rate, warmup_steps=up)
    model = make_model(data.shape, len(data.names), rate, mirror=data.has_labels)
    if args.restore:
        try:
            model.set_weights(keras.models.load_model(args.restore, compile=False).get_weights())
        except Exception as error:  # missing, damaged, of another model
            parser.error(f"--restore {args.restore}: {error}")
    if args.find_lr:
        return suggest_rate(args, sweep(args, model, data.epoch(0, batch, args.seed).repeat()))
    # Before the training, not after it: the model and two checkpoints with Adam's two moments.
    if shutil.disk_usage(out).free < 28 * model.count_params() + 2**20:
        parser.error(f"--out: no space left in {out} for the model and its checkpoints")
    model.steps_per_execution = args.steps_per_execution
    model.optimizer.build(model.trainable_variables)  # a checkpoint may follow
    # Other devices or more steps continue a run; where one of these differs, it is another run.
    settings = f"batch {batch}, rate {args.learning_rate}, seed {args.seed}, data {data.about}"
    settings += f", one cycle of {args.steps} steps" * (args.anneal != "none")
    settings += f", {model.count_params()} weights" + f", from {args.restore}" * bool(args.restore)
    for old in ("checkpoint.npz", "log.csv") if args.overwrite else ():
        (out / old).unlink(missing_ok=True)
    steps = Steps(args, model, settings)
    first_step, task = steps.step, "rotation" if data.names == list(ROTATIONS) else "classes"
    print(f"{len(data)} images of {data.shape}; {task}: {', '.join(data.names)}")
    print(f"{share} examples of each batch per device: {', '.join(devices)}")
    print(f"{args.steps} steps, {steps_per_epoch} in an epoch, {first_step} done; {settings}")
    options = {"callbacks": [steps, keras.callbacks.CSVLogger(out / "log.csv", append=True)]}
    options |= {"validation_data": data.validation(batch, replicas), "verbose": 2}
    epochs = []
    while steps.step < args.steps:
        epoch, done = divmod(steps.step, steps_per_epoch)
        last = min(steps_per_epoch, args.steps - epoch * steps_per_epoch)
        examples = data.epoch(epoch, batch, args.seed, skip=done)
        options |= {"steps_per_epoch": last - done, "initial_epoch": epoch, "epochs": epoch + 1}
        try:
            logs = model.fit(examples, **options).history
        except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
            parser.exit(1, f"--data is damaged ({error.message}): tpuctl data verify --deep\n")
        figures = {name: round(values[0], 4) for name, values in logs.items()}
        seconds = round(sum(steps.seconds[done - last :]), 4)
        epochs.append({"epoch": epoch + 1, "steps": last - done, "seconds": seconds, **figures})
    if not epochs:
        return print(f"{first_step} steps are done already: ask for more, or --overwrite")
    model.save(out / "model.keras")
    # The proof that every device worked: each counted up a step number of its own.
    number = model.optimizer.iterations.value
    copies = getattr(number, "addressable_shards", None) or getattr(number, "values", [number])
    ran = [(str(c.device).split("0/")[-1], int(getattr(c, "data", c)) - first_step) for c in copies]
    executed = [{"device": d, "steps": n, "examples": n * share} for d, n in ran]
    ms = np.array(steps.seconds[1:] or steps.seconds) * 1e3
    result = {**vars(args), "template": "images", "batch_size": batch, "epochs": epochs}
    result |= {"devices": devices, "replicas": replicas, "executed": executed}
    result |= {"task": task, "classes": data.names}
    result |= {"framework": f"keras-{keras.backend.backend()}", "model": str(out / "model.keras")}
    result |= {"first_step_ms": steps.seconds[0] * 1e3, "step_ms": {"p50": np.median(ms)}}
    result |= {"examples_per_s": batch / ms.mean() * 1e3, "steps_per_epoch": steps_per_epoch}
    result |= {"resumed_after_step": first_step, "test_accuracy": epochs[-1].get("val_accuracy")}
    (out / "result.json").write_text(json.dumps(result, indent=2))
    steps.save()
    print(f"{result['examples_per_s']:,.1f} examples/s; executed: {executed}")


if __name__ == "__main__":
    main()
