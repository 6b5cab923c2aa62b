"""Train an LSTM to tell good film reviews from bad ones, on whatever devices are here.

    python imdb_lstm.py --data aclImdb --epochs 5  # or a CSV file, here or gs://
    python imdb_lstm.py --data fake --steps 20     # no data, any laptop
    python imdb_lstm.py --data fake --steps 20 --cpu-devices 2  # two replicas

Real data: the folder aclImdb (train and test, each with pos and neg) of
ai.stanford.edu/~amaas/data/sentiment, or a CSV file with the columns
review and sentiment, whose last fifth is the test.

Keras 3; KERAS_BACKEND=tensorflow (default) or jax, which then needs no
TensorFlow. Interrupt it whenever you like, or let a spot TPU do so: the
same command goes on at the next step and ends with the same weights.

Measured: 256 short reviews made of random words that lean one way, batch
32, 6 epochs on two vCPUs: 97 % of 64 others are told correctly.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import re
import signal
import statistics
import sys
import time
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="the folder aclImdb, a CSV file, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=64, help="global: over all replicas")
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
parser.add_argument("--learning-rate", type=float, default=1e-3, help="for a batch of 64; scaled")
parser.add_argument(
    "--dtype",
    default="auto",
    choices=["auto", "float32", "bfloat16"],
    help="of the arithmetic; 'auto' is bfloat16 on TPUs (weights stay float32)",
)
parser.add_argument(
    "--steps-per-execution", type=int, default=1, help="steps per call of the device; 20 on a TPU"
)
parser.add_argument("--vocabulary", type=int, default=15000, help="so many frequent words count")
parser.add_argument("--length", type=int, default=250, help="words of a review that are read")
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--examples", type=int, default=2000, help="only for --data fake")
parser.add_argument("--trace", type=int, help="record so many steps into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into so many pretended devices")

# What the Keras code below runs on; `tpuctl launch` picks from these.
FRAMEWORKS = ("tensorflow", "jax")
TEMPLATE = "imdb-lstm"
# What reading a damaged file, or one of another kind, ends in.
UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)
# The learning rate that suits this batch is scaled linearly with the real one.
BASE_BATCH_SIZE = 64


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


def read_bytes(place: str) -> bytes:
    """A local file, or an object of a bucket; a missing one ends the program with a sentence."""
    if not place.startswith("gs://"):
        path = Path(place)
        if not path.is_file():
            raise SystemExit(f"--data: there is no file {place}. Without data: --data fake")
        return path.read_bytes()
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        raise SystemExit(
            f"--data {place} needs TensorFlow to read it. Copy it first: gcloud storage cp"
        ) from None
    try:
        with tf.io.gfile.GFile(place, "rb") as file:
            return file.read()
    except tf.errors.OpError as error:
        raise SystemExit(f"--data: could not read {place}: {error.message}") from None


def load_texts(place: str):
    """Return [(text, is positive)] to train on and to test."""
    if place.endswith(".csv"):
        rows = list(csv.DictReader(io.StringIO(read_bytes(place).decode("utf-8"))))
        if not rows or not {"review", "sentiment"} <= set(rows[0]):
            raise SystemExit(f"--data: {place} has no columns named review and sentiment.")
        pairs = [(row["review"], row["sentiment"] == "positive") for row in rows]
        return pairs[: len(pairs) * 4 // 5], pairs[len(pairs) * 4 // 5 :]
    splits = []
    for split in ("train", "test"):
        found = [
            (path.read_text(encoding="utf-8"), kind == "pos")
            for kind in ("neg", "pos")
            for path in sorted(Path(place, split, kind).glob("*.txt"))
        ]
        if not found:
            raise SystemExit(
                f"--data: there are no reviews in {place}/{split}/pos and neg. "
                "Without data: --data fake"
            )
        splits.append(found)
    return splits


def encode(texts: list, numbers: dict, length: int) -> np.ndarray:
    """The last words of every text as numbers, filled up from the front with 0; 1 is unknown."""
    rows = np.zeros((len(texts), length), np.int32)
    for row, words in zip(rows, map(split_words, texts), strict=True):
        known = [numbers.get(word, 1) for word in words[-length:]]
        row[length - len(known) :] = known
    return rows


def split_words(text: str) -> list[str]:
    """Lower-case words; the reviews' line breaks are HTML."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("<br />", " "))


def load_data(args: argparse.Namespace):
    """Return (x_train, y_train, x_test, y_test): int32 word numbers, int32 labels."""
    train, test = load_texts(args.data)
    counts = Counter(word for text, _ in train for word in split_words(text))
    # 0 fills up, 1 stands for every word that is not frequent enough.
    numbers = {word: n for n, (word, _) in enumerate(counts.most_common(args.vocabulary - 2), 2)}
    arrays = []
    for pairs in (train, test):
        arrays.append(encode([text for text, _ in pairs], numbers, args.length))
        arrays.append(np.array([label for _, label in pairs], np.int32))
    return arrays


def make_fake_data(args: argparse.Namespace):
    """Random words, in which a few stand more often in one kind of review: nothing to fetch."""
    rng, examples = np.random.default_rng(args.seed), args.examples
    test = max(10, examples // 10)
    labels = rng.integers(0, 2, examples + test).astype(np.int32)
    words = rng.integers(2, args.vocabulary, (examples + test, args.length)).astype(np.int32)
    telling = 2 + labels[:, np.newaxis] * 5 + rng.integers(0, 5, words.shape)
    words = np.where(rng.random(words.shape) < 0.2, telling, words).astype(np.int32)
    return words[:examples], labels[:examples], words[examples:], labels[examples:]


def order_of(epoch: int, rows: int, steps: int, batch_size: int, seed: int) -> np.ndarray:
    """Which rows make up the batches of an epoch.

    It follows from seed and epoch alone, so that a run can go on in the middle of one. Every batch
    is full (the remainder is dropped): a TPU compiles once for one shape.
    """
    return np.random.default_rng((seed, epoch)).permutation(rows)[: steps * batch_size]


# ---- Model ---------------------------------------------------------------------------------------


def make_model(args: argparse.Namespace, x, y, learning_rate: float):
    """Embedding 32, LSTM 100, one logit: 0.5 M parameters, nearly all of them in the embedding."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input(x.shape[1:], dtype="int32"),
            layers.Embedding(args.vocabulary, 32),
            # Nothing is masked and every review has one length: the loop compiles once.
            layers.LSTM(100),
            layers.Dense(1, dtype="float32"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
        steps_per_execution=args.steps_per_execution,
    )
    return model


def make_example():
    """What `tpuctl fit` compiles under this template's name: the model of `--data fake`."""
    args = parser.parse_args([])
    x, y, *_ = make_fake_data(args)
    return make_model(args, x, y, args.learning_rate)


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which rows the model got right: a logit above 0 says positive."""
    return (predicted[:, 0] > 0) == labels


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
    for name in ("steps", "epochs", "batch_size", "steps_per_execution", "save_every", "examples"):
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


def check_batch(batch_size: int, replicas: int, rows: int) -> None:
    """A batch divides over the replicas, and there is one."""
    if batch_size % replicas:
        near = max(1, round(batch_size / replicas)) * replicas
        parser.error(
            f"--batch-size {batch_size} does not divide over {replicas} replicas; "
            f"--batch-size {near} would"
        )
    if batch_size > rows:
        parser.error(f"--batch-size {batch_size} is more than the {rows} examples there are")


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
        x, y, x_test, y_test = make_fake_data(args) if args.data == "fake" else load_data(args)
    except UNREADABLE as error:
        raise SystemExit(
            f"--data: could not read {args.data}: {error}. Without data: --data fake"
        ) from None

    try:
        import keras
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error}. Install it: pip install keras {os.environ['KERAS_BACKEND']}"
        ) from None

    keras.utils.set_random_seed(args.seed)
    scope, replicas, devices, strategy = open_strategy(args.strategy, args.cpu_devices)
    check_batch(args.batch_size, replicas, len(x))
    if args.steps_per_execution > 1 and type(strategy).__name__ == "MirroredStrategy":
        # Keras 3.15 with TensorFlow 2.21: "You must feed a value for placeholder tensor".
        parser.error("--steps-per-execution above 1 fails under --strategy mirrored; leave it out")
    steps_per_epoch = len(x) // args.batch_size
    total_steps = args.steps or args.epochs * steps_per_epoch
    learning_rate = args.learning_rate * args.batch_size / BASE_BATCH_SIZE
    on_tpu = any("TPU" in device.upper() for device in devices)
    if args.dtype == "bfloat16" or (args.dtype == "auto" and on_tpu):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")

    print(f"framework: keras {keras.__version__} on {keras.backend.backend()}")
    print(f"devices: {', '.join(devices)} ({replicas} replica{'s' * (replicas > 1)})")
    print(f"arithmetic: {keras.mixed_precision.dtype_policy().compute_dtype}")
    print(f"data: {len(x)} examples of {x.shape[1:]} to train on, {len(x_test)} to test")
    print(f"batch: {args.batch_size} global, {args.batch_size // replicas} per replica")
    rate = f"{args.learning_rate} x {args.batch_size}/{BASE_BATCH_SIZE} = {learning_rate:g}"
    print(f"learning rate: {rate}")
    print(f"steps: {total_steps}, {steps_per_epoch} in an epoch", flush=True)

    with scope:
        model = make_model(args, x, y, learning_rate)
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

    counter = count_steps(strategy) if strategy else None
    clock, saver, callbacks = make_callbacks(args, out, steps_per_epoch, first_step)
    while clock.step < total_steps and not saver.signal:
        epoch, done = divmod(clock.step, steps_per_epoch)
        order = order_of(epoch, len(x), steps_per_epoch, args.batch_size, args.seed)
        last = min(steps_per_epoch, total_steps - epoch * steps_per_epoch)
        rows = order[done * args.batch_size : last * args.batch_size]
        model.fit(
            x[rows],
            y[rows],
            batch_size=args.batch_size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=callbacks,
            shuffle=False,  # the rows are shuffled already
            verbose=0,
        )
    if saver.signal:
        saver.save()  # it may have come between two epochs
        print(f"stopped after step {clock.step}; the same command goes on from there", flush=True)
        sys.exit(128 + saver.signal)
    executed = executed_by(model, strategy, counter, first_step, args.batch_size // replicas)

    part = out / "part.keras"
    model.save(part)
    os.replace(part, out / "model.keras")
    # Whole batches only, here too; what the padding predicts is cut off.
    padding = -len(x_test) % args.batch_size
    padded = np.concatenate([x_test, np.repeat(x_test[:1], padding, axis=0)])
    predicted = model.predict(padded, batch_size=args.batch_size, verbose=0)[: len(x_test)]
    accuracy = round(float(is_correct(predicted, y_test).mean()), 4)

    result = {
        "template": TEMPLATE,
        "framework": f"keras-{keras.backend.backend()}",
        "strategy": args.strategy,
        "devices": devices,
        "replicas": replicas,
        "batch_size": args.batch_size,
        "learning_rate": learning_rate,
        "steps": total_steps,
        "resumed_after_step": first_step,
        "steps_per_epoch": steps_per_epoch,
        "epochs": clock.epochs,
        **summarise(clock.step_s, args.batch_size),
        "test_accuracy": accuracy,
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
    print(f"test accuracy: {accuracy:.1%}")


if __name__ == "__main__":
    main()
