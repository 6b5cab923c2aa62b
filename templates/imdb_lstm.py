"""Train an LSTM to tell good film reviews from bad ones, on whatever devices are here.

    python imdb_lstm.py --data reviews.csv         # here or gs://; or imdb.npz, as Keras has it
    python imdb_lstm.py --data fake --steps 20 --cpu-devices 2  # no data, two replicas, any laptop

A CSV file has the columns review and sentiment, as on Kaggle; its last fifth is the test. The same
command resumes. KERAS_BACKEND=tensorflow or jax. `--data fake --length 50 --epochs 2` gives 100 %.
"""

import argparse
import csv
import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from zlib import crc32

import numpy as np

# Keras reads its backend once, when it is imported. `tpuctl launch` picks from FRAMEWORKS.
FRAMEWORKS = ("tensorflow", "jax")
if os.environ.setdefault("KERAS_BACKEND", "tensorflow") not in FRAMEWORKS:
    raise SystemExit(f"KERAS_BACKEND={os.environ['KERAS_BACKEND']} is not for this template.")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="CSV or imdb.npz, here or gs://, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=64, help="global: over all replicas")
parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam; never scaled")
parser.add_argument("--vocabulary", type=int, default=15000, help="number of words known")
parser.add_argument("--length", type=int, default=250, help="words kept of each review")
parser.add_argument("--examples", type=int, default=2000, help="only for --data fake")
parser.add_argument("--anneal", default="none", choices=["none", "cosine"], help="one cycle or not")
parser.add_argument("--find-lr", action="store_true", help="only look for a learning rate")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="training/imdb-lstm", help="checkpoint, model, result.json")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--restore", help="begin with the weights of this model.keras")
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--steps-per-execution", type=int, default=1, help="20 keeps a TPU busy")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")
parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
parser.add_argument("--strategy", default="auto", help="how to spread a batch over devices",
                    choices=["auto", "default", "mirrored", "tpu-local", "tpu-grpc", "tpu-name",
                             "mesh", "single", "cpu"])  # fmt: skip


def load_data(args: argparse.Namespace) -> list[np.ndarray]:
    """Return x_train, y_train, x_test, y_test: int32 numbers of words, int32 labels."""
    open_file = open
    if args.data.startswith("gs://"):
        from tensorflow.io.gfile import GFile as open_file  # on JAX nothing else needs it
    with open_file(args.data, "rb") as file:
        if args.data.endswith(".npz"):
            # Lists of words by their rank, so pickled; the file that keras.datasets.imdb fetches.
            saved = np.load(file, allow_pickle=True)
            words, test = [*saved["x_train"], *saved["x_test"]], len(saved["x_train"])
            y = np.append(saved["y_train"], saved["y_test"])
        else:
            rows = list(csv.DictReader(row.decode().lower().replace("<br />", " ") for row in file))
            words = [re.findall(r"[a-z0-9']+", row["review"]) for row in rows]
            y, test = np.array([row["sentiment"] == "positive" for row in rows]), len(rows) * 4 // 5
    counts = Counter(w for text in words[:test] for w in text).most_common(args.vocabulary - 2)
    number = {word: number for number, (word, _) in enumerate(counts, 2)}
    texts = [[number.get(w, 1) for w in text] for text in words]
    # 0 pads, in front, where an LSTM forgets it; 1 is every word that is not frequent enough.
    x, y = keras.utils.pad_sequences(texts, args.length), y.astype(np.int32)
    return [x[:test], y[:test], x[test:], y[test:]]


def make_fake_data(args: argparse.Namespace) -> list[np.ndarray]:
    """Make reviews of random words, a few of which are more frequent in one class."""
    rng, test = np.random.default_rng(args.seed), args.examples // 10 + 1
    y = rng.integers(0, 2, args.examples + test, np.int32)
    x = rng.integers(2, args.vocabulary, (len(y), args.length), np.int32)
    x[:, ::5] = 2 + 5 * y[:, None] + rng.integers(0, 5, x[:, ::5].shape)
    return [x[test:], y[test:], x[:test], y[:test]]


def make_model(args: argparse.Namespace, x: np.ndarray, y: np.ndarray) -> keras.Model:
    """Build embedding 32, LSTM 100, one sigmoid; without a mask it compiles once."""
    model = keras.Sequential([keras.Input(x.shape[1:], dtype="int32")])
    model.add(keras.layers.Embedding(args.vocabulary, 32))
    model.add(keras.layers.LSTM(100))
    model.add(keras.layers.Dense(1, activation="sigmoid", dtype="float32"))
    model.compile(keras.optimizers.Adam(args.learning_rate), "bce", metrics=["accuracy"])
    return model


def make_example() -> keras.Model:
    """Return what `tpuctl fit` compiles under this template's name."""
    args = parser.parse_args([])
    return make_model(args, *make_fake_data(args)[:2])


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
    import tensorflow as tf

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


def find_rate(args: argparse.Namespace, model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    """Raise the rate in every step until the loss explodes; write lr.json and lr.png."""
    try:
        from tpuctl.training import LearningRateFinder
    except ModuleNotFoundError:
        parser.error("--find-lr is the only option that needs tpuctl: pip install tpuctl")
    batch, steps = args.batch_size, max(args.steps or 120, 2)
    finder, epochs = LearningRateFinder(steps, low=1e-6), -(-steps // (len(x) // batch))
    model.fit(x, y, batch, epochs, verbose=0, callbacks=[finder])
    print(f"{finder.write(args.out)}, at a batch of {batch}")


class Steps(keras.callbacks.Callback):
    """Times steps, saves checkpoints (BackupAndRestore forgets dropout's state), heeds signals."""

    def __init__(self, args: argparse.Namespace, model: keras.Model, settings: str) -> None:
        super().__init__()
        self.args, self.settings, self.path = args, settings, Path(args.out, "checkpoint.npz")
        self.step, self.seconds, self.signals = 0, [], []
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
        """Start the clock."""
        self.batch, self.started = batch, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stop the clock; the last execution of an epoch may hold fewer steps than the others."""
        float(logs["loss"])  # waits for the device
        done = min(batch + 1, self.params["steps"]) - self.batch
        self.step += done
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
    batch, out = args.batch_size, Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        x, y, x_test, y_test = (make_fake_data if args.data == "fake" else load_data)(args)
    except Exception as error:  # missing, damaged, of another kind
        parser.error(f"--data {args.data} --out {out}: {error}. Without data: --data fake")
    keras.utils.set_random_seed(args.seed)
    devices = open_devices(args)
    share, steps_per_epoch = batch // len(devices), len(x) // batch
    if batch % len(devices) or not steps_per_epoch:
        parser.error(f"--batch-size must be a multiple of {len(devices)} and at most {len(x)}")
    if args.dtype == "bfloat16" or (args.dtype == "auto" and "TPU" in devices[0].upper()):
        keras.config.set_dtype_policy("mixed_bfloat16")
    model = make_model(args, x, y)
    model.optimizer.build(model.trainable_variables)  # a checkpoint may follow
    if args.restore:
        try:
            model.set_weights(keras.models.load_model(args.restore, compile=False).get_weights())
        except Exception as error:  # missing, damaged, of another model
            parser.error(f"--restore {args.restore}: {error}")
    if args.find_lr:
        return find_rate(args, model, *(part[: steps_per_epoch * batch] for part in (x, y)))
    model.steps_per_execution = args.steps_per_execution
    total_steps, epochs = args.steps or args.epochs * steps_per_epoch, []
    # Other devices or more steps continue a run; another of these is another run.
    about = f"data {crc32(y, crc32(x))}, batch {batch}, rate {args.learning_rate}, seed {args.seed}"
    about += f", {model.count_params()} weights" + f", from {args.restore}" * bool(args.restore)
    if args.anneal == "cosine":  # arXiv 1803.09820
        about, up = f"{about}, one cycle of {total_steps} steps", 0.3 * total_steps
        cycle = (args.learning_rate / 25, total_steps - up, 1e-4, "cycle", args.learning_rate, up)
        model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(*cycle)
    for old in ("checkpoint.npz", "log.csv") if args.overwrite else ():
        (out / old).unlink(missing_ok=True)
    first_step = (steps := Steps(args, model, about)).step
    print(f"{share} examples of each batch per device: {', '.join(devices)}")
    print(f"{total_steps} steps, {steps_per_epoch} in an epoch, {first_step} done; {about}")
    tested = len(x_test) // len(devices) * len(devices)
    print(f"tested on {tested} of {len(x_test)} examples: as many on each device")
    options = {"callbacks": [steps, keras.callbacks.CSVLogger(out / "log.csv", append=True)]}
    options |= {"shuffle": False, "verbose": 2, "batch_size": batch}
    options |= {"validation_data": (x_test[:tested], y_test[:tested]) if tested else None}
    while steps.step < total_steps:
        epoch, done = divmod(steps.step, steps_per_epoch)
        # The order follows from seed and epoch alone, so that a run can resume at any step.
        order = np.random.default_rng((args.seed, epoch)).permutation(len(x))
        last = min(steps_per_epoch, total_steps - epoch * steps_per_epoch)
        rows = order[done * batch : last * batch]
        logs = model.fit(x[rows], y[rows], initial_epoch=epoch, epochs=epoch + 1, **options).history
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
    result = {**vars(args), "template": "imdb-lstm", "steps": total_steps, "epochs": epochs}
    result |= {"devices": devices, "replicas": len(devices), "executed": executed}
    result |= {"framework": f"keras-{keras.backend.backend()}", "model": str(out / "model.keras")}
    result |= {"first_step_ms": steps.seconds[0] * 1e3, "step_ms": {"p50": np.median(ms)}}
    result |= {"examples_per_s": batch / ms.mean() * 1e3, "steps_per_epoch": steps_per_epoch}
    result |= {"resumed_after_step": first_step, "test_accuracy": epochs[-1].get("val_accuracy")}
    (out / "result.json").write_text(json.dumps(result, indent=2))
    steps.save()
    print(f"test accuracy: {result['test_accuracy']}; executed: {executed}")


if __name__ == "__main__":
    main()
