"""Write the training loop yourself: iris, tf.distribute, and a proof that every replica worked.

    python custom_loop.py --data iris.csv --epochs 100  # here or gs://
    python custom_loop.py --data fake --steps 20        # no data, any laptop
    python custom_loop.py --data fake --steps 20 --cpu-devices 4  # four replicas

Real data: the CSV file of Fisher's iris, four numbers and a name in each
row, with or without a header. Any table of that shape trains as well.

No Keras: variables, a gradient, an all-reduce and an update, so that
nothing is hidden. Interrupt it whenever you like: the same command resumes
at the next step and ends with the same weights.

On two vCPUs, `--data iris.csv` with the other flags as they are names 90 % of
the 30 flowers right that it never saw (Fisher's 150, 120 to train on).
"""

import argparse
import csv
import io
import json
import os
import signal
import statistics
import sys
import time
import zlib
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="a CSV file, here or gs://, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=8, help="global: over all replicas together")
parser.add_argument("--out", default="training/custom-loop", help="checkpoint, model, result.json")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument(
    "--strategy",
    default="auto",
    choices=["auto", "default", "mirrored", "tpu-local", "tpu-grpc", "tpu-name"],
    help="how to spread a batch over devices; 'auto' looks at what there is",
)
parser.add_argument(
    "--learning-rate", type=float, default=0.1, help="of plain descent; never scaled"
)
parser.add_argument("--restore", help="begin with the weights of this model.npz")
parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")

# `tpuctl launch` picks from these; for JAX see the template jax-images.
FRAMEWORKS = ("tensorflow",)
HIDDEN = 256


# ---- Devices and strategy ------------------------------------------------------------------------


def open_strategy(name: str, cpu_devices: int | None):
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
        return tf.distribute.TPUStrategy(resolver)
    if name == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


# ---- Data ----------------------------------------------------------------------------------------


def read_table(place: str):
    """Return (features, labels, class names) of a CSV file whose last column is the class."""
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(place) as file:
            rows = [row for row in csv.reader(io.StringIO(file.read())) if row]
    except tf.errors.NotFoundError:
        raise SystemExit(f"--data: there is no file {place}. Without data: --data fake") from None
    except (tf.errors.OpError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"--data: could not read {place}: {error}") from None
    rows = rows[1:] if rows and not is_number(rows[0][0]) else rows
    try:
        features = np.array([[float(text) for text in row[:-1]] for row in rows], np.float32)
    except ValueError as error:
        raise SystemExit(f"--data: {place} holds a row that is not numbers: {error}") from None
    if len(features) < 10:
        raise SystemExit(f"--data: {place} holds {len(features)} rows; it takes at least 10.")
    names = sorted({row[-1] for row in rows})
    return features, np.array([names.index(row[-1]) for row in rows], np.int32), names


def is_number(text: str) -> bool:
    """Whether a cell of the first row is data rather than a heading."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def make_fake_table(seed: int):
    """Three clouds of points that can be told apart: no data to fetch."""
    rng = np.random.default_rng(seed)
    labels = np.arange(150, dtype=np.int32) % 3
    features = rng.normal(size=(150, 4)) + 3 * rng.normal(size=(3, 4))[labels]
    return features.astype(np.float32), labels, ["a", "b", "c"]


def split(features, labels, seed: int):
    """A fifth of the rows, chosen by the seed, is the test; all are scaled by the others."""
    order = np.random.default_rng(seed).permutation(len(features))
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]
    mean, deviation = features[rest].mean(axis=0), features[rest].std(axis=0) + 1e-6
    scaled = (features - mean) / deviation
    # The bias is an input that is always 1.
    inputs = np.concatenate([scaled, np.ones((len(scaled), 1), np.float32)], axis=1)
    return (inputs[rest], labels[rest]), (inputs[test], labels[test])


def rows_of(step: int, rows: int, batch_size: int, seed: int) -> np.ndarray:
    """Which rows make up a step's batch.

    They follow from seed and step alone, so that a run can resume anywhere. Every batch is full
    (the remainder of an epoch is dropped): a TPU compiles once for one shape.
    """
    epoch, index = divmod(step, rows // batch_size)
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    return order[index * batch_size : (index + 1) * batch_size]


# ---- Model and step ------------------------------------------------------------------------------


def make_variables(strategy, inputs: int, classes: int, seed: int):
    """One hidden layer of 256 sigmoids; every replica gets a copy, all copies stay equal."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    shapes = {"hidden": (inputs, HIDDEN), "output": (HIDDEN, classes)}
    with strategy.scope():
        return {
            name: tf.Variable(rng.normal(0, 1 / np.sqrt(shape[0]), shape).astype(np.float32))
            for name, shape in shapes.items()
        }


def predict(variables, x):
    """Logits; the softmax is part of the loss."""
    import tensorflow as tf

    return tf.sigmoid(x @ variables["hidden"]) @ variables["output"]


def make_step(strategy, variables, learning_rate: float, batch_size: int):
    """Return (step, counter): one step on all replicas, and what each of them has done."""
    import tensorflow as tf

    with strategy.scope():
        # One copy on every device; it is the proof that the device took part.
        counter = tf.Variable(
            [0, 0],
            dtype=tf.int64,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def on_one_replica(x, y):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, predict(variables, x))
            # Divided by the *global* batch: the sum over the replicas is then the mean.
            loss = tf.reduce_sum(each) / batch_size
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for name, variable in variables.items():
            # Each replica updates its own copy; the copies stay equal because the sum is the same.
            variable.assign(variable - learning_rate * summed[name])
        counter.assign_add(tf.stack([1, tf.shape(x, tf.int64)[0]]))
        return loss

    @tf.function
    def step(x, y):
        losses = strategy.run(on_one_replica, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return step, counter


def make_example(batch: int = 1024):
    """What `tpuctl fit custom-loop` compiles: the step of one replica on rows as in `fake`."""
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    variables = make_variables(strategy, inputs=5, classes=3, seed=0)
    step, _ = make_step(strategy, variables, learning_rate=0.1, batch_size=batch)
    return step, (tf.TensorSpec((batch, 5)), tf.TensorSpec((batch,), tf.int32))


def spread(strategy, x, y):
    """Give every replica its part of a batch."""
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return tf.constant(x), tf.constant(y)
    parts = [np.split(values, replicas) for values in (x, y)]
    return tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: tf.constant(part[context.replica_id_in_sync_group])
        )
        for part in parts
    )


# ---- Checkpoints and proof -----------------------------------------------------------------------


def save(path: Path, arrays: dict) -> None:
    """Leave the whole file or none."""
    part = path.with_name("part.npz")
    np.savez(part, **arrays)
    os.replace(part, path)


def check_same_run(before: dict, now: dict) -> None:
    """Refuse to continue a run with other mathematics; devices and strategy may change."""
    changed = [f"{name} {before.get(name)}, now {now.get(name)}" for name in before | now
               if before.get(name) != now.get(name)]  # fmt: skip
    if changed:
        raise SystemExit(
            f"--out holds a run with {'; '.join(changed)}. "
            "Choose another --out, or start over with --overwrite"
        )


def restore(checkpoint: Path, settings: dict, variables) -> int:
    """Go to where the run was saved; returns the number of steps that are done."""
    with np.load(checkpoint) as saved:
        try:
            before = json.loads(str(saved["settings"]))
        except (KeyError, ValueError):
            raise SystemExit(
                f"{checkpoint} is not of this template. Choose another --out, or --overwrite it"
            ) from None
        check_same_run(before, settings)
        for name, variable in variables.items():
            variable.assign(saved[name])
        return int(saved["step"])


def executed_by(strategy, counter) -> list[dict]:
    """What every device counted itself."""
    entries = []
    for part in strategy.experimental_local_results(counter):
        steps, examples = part.numpy().tolist()
        device = part.device.partition("/task:0")[2]
        entries.append({"device": device, "steps": steps, "examples": examples})
    return entries


def spread_of_copies(strategy, variables) -> float:
    """The largest difference between two replicas' copies of a weight: 0 where reduction worked."""
    copies = [strategy.experimental_local_results(variable) for variable in variables.values()]
    return max(
        float(np.abs(copy.numpy() - parts[0].numpy()).max()) for parts in copies for copy in parts
    )


# ---- One run, top to bottom ----------------------------------------------------------------------


def main() -> None:
    """Read the flags, open the devices, train, and show that every replica did its part."""
    args = parser.parse_args()
    for name in ("steps", "epochs", "batch_size", "save_every", "cpu_devices"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.seed < 0:
        parser.error("--seed must be at least 0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out: {error}") from None

    try:
        import tensorflow  # noqa: F401
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}. Install it: pip install tensorflow") from None
    strategy = open_strategy(args.strategy, args.cpu_devices)
    replicas = strategy.num_replicas_in_sync
    table = make_fake_table(args.seed) if args.data == "fake" else read_table(args.data)
    features, labels, names = table
    (x, y), (x_test, y_test) = split(features, labels, args.seed)
    if args.batch_size % replicas:
        near = max(1, round(args.batch_size / replicas)) * replicas
        parser.error(
            f"--batch-size {args.batch_size} does not divide over {replicas} replicas; "
            f"--batch-size {near} would"
        )
    if args.batch_size > len(x):
        parser.error(f"--batch-size {args.batch_size} is more than the {len(x)} examples there are")
    steps_per_epoch = len(x) // args.batch_size
    total_steps = args.steps or args.epochs * steps_per_epoch

    print(f"strategy: {type(strategy).__name__}, {replicas} replica{'s' * (replicas > 1)}")
    print(f"data: {len(x)} rows to train on, {len(x_test)} to test; classes: {', '.join(names)}")
    print(f"batch: {args.batch_size} global, {args.batch_size // replicas} per replica")
    print(f"learning rate: {args.learning_rate}, as given")
    print(f"steps: {total_steps}, {steps_per_epoch} in an epoch", flush=True)

    variables = make_variables(strategy, x.shape[1], len(names), args.seed)
    train_step, counter = make_step(strategy, variables, args.learning_rate, args.batch_size)
    settings = {name: getattr(args, name) for name in ("batch_size", "learning_rate", "seed")}
    crc = zlib.crc32(labels, zlib.crc32(features))
    settings["data"] = f"{len(features)} rows, CRC {crc}"
    if args.restore:
        settings["restored"] = args.restore
        try:
            with np.load(args.restore) as saved:
                for name, variable in variables.items():
                    variable.assign(saved[name])
        except (OSError, KeyError, ValueError) as error:
            raise SystemExit(f"--restore {args.restore}: {error}") from None
    checkpoint, first_step = out / "checkpoint.npz", 0
    for old in (checkpoint, out / "log.csv") if args.overwrite else ():
        old.unlink(missing_ok=True)
    if checkpoint.exists():
        first_step = restore(checkpoint, settings, variables)
        print(f"resuming after step {first_step}", flush=True)
    elif (out / "model.npz").exists() and not args.overwrite:
        raise SystemExit(f"{out} has a model and no checkpoint: --overwrite?")
    if first_step >= total_steps:
        print(f"{first_step} steps are done already: ask for more, or --overwrite")
        return
    record = json.dumps(settings)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    step_s, wait_s, epochs, spoken = [], [], [], time.perf_counter()
    for step in range(first_step, total_steps):
        started = time.perf_counter()
        rows = rows_of(step, len(x), args.batch_size, args.seed)
        batch = spread(strategy, x[rows], y[rows])
        wait_s.append(time.perf_counter() - started)
        loss = float(train_step(*batch))
        step_s.append(time.perf_counter() - started)
        if (step + 1) % steps_per_epoch == 0:
            # After every epoch, on the rows that are never trained on.
            right = (predict(variables, x_test).numpy().argmax(axis=1) == y_test).mean()
            epoch, right = (step + 1) // steps_per_epoch, round(float(right), 4)
            epochs.append({"epoch": epoch, "steps": steps_per_epoch, "val_accuracy": right})
            with (out / "log.csv").open("a") as log:
                log.write(f"{epoch},{loss:.4f},{right}\n")
        leaving = bool(stopped)  # asked once: what comes after the save waits for the next step
        if leaving or (step + 1) % args.save_every == 0:
            values = {name: variable.numpy() for name, variable in variables.items()}
            save(checkpoint, {**values, "step": step + 1, "settings": record})
        if time.perf_counter() - spoken > 1 or step + 1 == total_steps:
            spoken = time.perf_counter()
            rate = args.batch_size / step_s[-1]
            print(f"step {step + 1}: loss {loss:.4f}, {rate:,.0f} examples/s", flush=True)
        if leaving:
            how = "the same command" + " without --overwrite" * args.overwrite
            print(f"stopped after step {step + 1}; {how} resumes there", flush=True)
            sys.exit(128 + stopped[0])

    executed = executed_by(strategy, counter)
    accuracy = float((predict(variables, x_test).numpy().argmax(axis=1) == y_test).mean())
    values = {name: variable.numpy() for name, variable in variables.items()}
    save(out / "model.npz", values)
    rest = step_s[1:] or step_s
    median_s = statistics.median(rest) if rest else None
    waited = sum(wait_s[1:]) / sum(step_s[1:]) if len(step_s) > 8 else None
    result = {
        "template": "custom-loop",
        "framework": "tensorflow",
        "strategy": args.strategy,
        "devices": [entry["device"] for entry in executed],
        "replicas": replicas,
        "batch_size": args.batch_size,
        "learning_rate": args.learning_rate,
        "steps": total_steps,
        "steps_per_epoch": steps_per_epoch,
        "epochs": epochs,
        "resumed_after_step": first_step,
        "step_ms": {"p50": round(median_s * 1e3, 3)} if median_s else None,
        "examples_per_s": round(args.batch_size / median_s, 1) if median_s else None,
        "input_wait_fraction": waited and round(waited, 4),
        "test_accuracy": round(accuracy, 4),
        "difference_between_replicas": spread_of_copies(strategy, variables),
        "executed": executed,
        "model": str(out / "model.npz"),
    }
    part = out / "result.json.part"
    part.write_text(json.dumps(result, indent=2))
    os.replace(part, out / "result.json")
    # Last, and kept: the same command with more steps continues here.
    save(checkpoint, {**values, "step": total_steps, "settings": record})
    if median_s:
        print(f"step: {median_s * 1e3:.2f} ms; speed: {result['examples_per_s']} examples/s")
    if waited is not None:
        print(f"waited for input: {waited:.0%} of the time")
    for entry in executed:
        print(f"{entry['device']} executed {entry['steps']} steps, {entry['examples']} examples")
    print(f"weights differ between replicas by {result['difference_between_replicas']}")
    print(f"test accuracy: {accuracy:.1%}")


if __name__ == "__main__":
    main()
