"""Train an image classifier in plain JAX on a mesh of all devices, one host or many.

    python jax_images.py --data shards --epochs 2  # made by tpuctl data presize
    python jax_images.py --data fake --steps 20 --cpu-devices 4  # no data, a mesh of four

No Keras, no TensorFlow: the shards are read with the standard library, images are decoded with
Pillow in threads and flipped at random on the device. On several hosts start the same command on
each of them with --strategy distributed+mesh; every host reads its own part of each batch.

A tenth of the images is held out and tells the accuracy after each epoch. --find-lr suggests a
learning rate, --anneal cosine goes up to it and down again (one cycle). Interrupt it whenever you
like: the same command resumes at the next step and ends with the same weights. The time spent
waiting for images is measured and said at the end.
Measured: 240 images of scikit-learn's digits 0, 1 and 2, --batch-size 24
--epochs 5 on two vCPUs: 96 % of the 24 held out.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import signal
import statistics
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. Install it: pip install jax (on a TPU: jax[tpu])") from None

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all devices and hosts")
parser.add_argument("--out", default="training/jax-images", help="checkpoint, model, result.json")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--strategy", default="auto", help="'auto' is a mesh of all of this host",
                    choices=["auto", "default", "mesh", "single", "cpu",
                             "distributed+mesh"])  # fmt: skip
parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam; never scaled")
parser.add_argument("--anneal", default="none", choices=["none", "cosine"],
                    help="'cosine': in one cycle up to the rate and down again")  # fmt: skip
parser.add_argument("--find-lr", action="store_true", help="only look for a learning rate")
parser.add_argument("--restore", help="begin with the weights of this model.npz")
parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--image-size", type=int, default=64, help="only for --data fake")
parser.add_argument("--trace", type=int, help="number of steps to record into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")

# `tpuctl launch` picks from these; for TensorFlow see the template images.
FRAMEWORKS = ("jax",)
# What a damaged shard or image ends in.
UNREADABLE = (OSError, IndexError, KeyError, ValueError, struct.error)
CHANNELS = (32, 64, 128, 256)
# Every tenth record of a shard is not trained on: each epoch ends with a validation on them.
HELD_OUT = 10


# ---- Devices -------------------------------------------------------------------------------------
def open_mesh(name: str):
    """A mesh with one axis, `data`, over the devices that take part."""
    if name == "distributed+mesh":
        # Before anything else; on Cloud TPUs and GKE it finds the other hosts by itself.
        jax.distributed.initialize()
    devices = jax.devices() if name in ("auto", "mesh", "distributed+mesh") else jax.devices()[:1]
    return jax.sharding.Mesh(np.array(devices), ("data",))


# ---- Data ----------------------------------------------------------------------------------------
def read_bytes(place: str) -> bytes:
    """A local file, or an object of a bucket where gcsfs is installed."""
    if not place.startswith("gs://"):
        return Path(place).read_bytes()
    try:
        import gcsfs
    except ModuleNotFoundError:
        raise SystemExit(f"--data {place} needs gcsfs to read it: pip install gcsfs") from None
    with gcsfs.GCSFileSystem().open(place) as file:
        return file.read()


def read_manifest(folder: str) -> dict:
    """Read which files belong to the data set; anything else in the folder is not ours."""
    place = f"{folder.rstrip('/')}/manifest.json"
    try:
        manifest = json.loads(read_bytes(place))
        encode, form = manifest["options"]["encode"], manifest["options"]["format"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"--data: could not read {place}: {error}. Without: --data fake") from None
    if (encode, form) != ("jpeg", "tfrecord"):
        raise SystemExit(
            f"--data: {folder} holds {encode} in {form}. This template reads JPEG in tfrecord: "
            "tpuctl data presize --encode jpeg --format tfrecord"
        )
    return manifest


def split_records(shard: bytes):
    """TFRecord: a length, its checksum, the record, its checksum (`tpuctl data verify` checks)."""
    at = 0
    while at < len(shard):
        (length,) = struct.unpack_from("<Q", shard, at)
        yield shard[at + 12 : at + 12 + length]
        at += 16 + length


def fields(message: bytes):
    """(number, value) of a protobuf message: bytes for what has a length, numbers for the rest."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        value, at = varint(message, at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        yield key >> 3, value


def varint(message: bytes, at: int):
    """A number in groups of seven bits; returns it and where the next thing begins."""
    number = shift = 0
    while True:
        byte = message[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def parse_example(record: bytes):
    """(image, label) of a tf.train.Example: features > feature > (name, list > value)."""
    found = {}
    for _, features in fields(record):
        for _, entry in fields(features):
            name, feature = (value for _, value in sorted(fields(entry)))
            ((_, values),) = fields(feature)
            found[name] = dict(fields(values)).get(1, b"")
    label = found[b"label"]
    return found[b"image"], label if isinstance(label, int) else varint(label, 0)[0]


def decode(record: bytes, side: int):
    """A record's image, cut from the middle, and its label."""
    from PIL import Image

    encoded, label = parse_example(record)
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return np.asarray(picture.crop((left, top, left + side, top + side))), label


def count_records(manifest: dict) -> tuple[int, int]:
    """How many are trained on, and how many are held out."""
    counts = [shard["records"] for shard in manifest["shards"]]
    held_out = sum(count // HELD_OUT for count in counts)
    return sum(counts) - held_out, held_out


def read_held_out(args: argparse.Namespace, manifest: dict, batch_size: int, part: tuple):
    """The records that are not trained on: this host's part of each full batch."""
    side, (index, count), held = min(manifest["options"]["size"]), part, []
    for shard in manifest["shards"]:
        records = split_records(read_bytes(f"{args.data}/{shard['name']}"))
        held += list(records)[HELD_OUT - 1 :: HELD_OUT]
        while len(held) >= batch_size:
            mine = held[:batch_size][
                batch_size * index // count : batch_size * (index + 1) // count
            ]
            pictures, labels = zip(*(decode(record, side) for record in mine), strict=True)
            yield np.stack(pictures), np.array(labels, np.int32)
            held = held[batch_size:]


def read_batches(args: argparse.Namespace, manifest: dict, step: int, part: tuple):
    """Endless (uint8 images, labels) from a step on: this host's part of each full batch.

    The order follows from seed and epoch alone: first of the shards, then within each. Shards that
    lie before the step are not even opened.
    """
    folder, batch_size, seed = args.data, args.batch_size, args.seed
    side, shards = min(manifest["options"]["size"]), manifest["shards"]
    per_epoch = count_records(manifest)[0] // batch_size
    index, count = part
    mine = slice(index * batch_size // count, (index + 1) * batch_size // count)
    epoch, done = divmod(step, per_epoch)
    with ThreadPoolExecutor() as threads:
        ahead = None
        while True:
            rng = np.random.default_rng((seed, epoch))
            held, skip, left = [], done * batch_size, per_epoch - done
            for number in rng.permutation(len(shards)):
                rows = np.arange(1, shards[number]["records"] + 1)
                order = rng.permutation(rows[rows % HELD_OUT != 0]) - 1
                if skip >= len(order):
                    skip -= len(order)
                    continue
                records = list(split_records(read_bytes(f"{folder}/{shards[number]['name']}")))
                held += [records[row] for row in order[skip:]]
                skip = 0
                while len(held) >= batch_size and left:
                    batch, held, left = held[:batch_size][mine], held[batch_size:], left - 1
                    # One batch is being decoded while the device works on the one before.
                    following = [threads.submit(decode, record, side) for record in batch]
                    if ahead:
                        yield stack(ahead)
                    ahead = following
            epoch, done = epoch + 1, 0


def stack(decoding: list):
    """Wait for the images of a batch."""
    pictures, labels = zip(*(future.result() for future in decoding), strict=True)
    return np.stack(pictures), np.array(labels, np.int32)


def fake_batches(args: argparse.Namespace, manifest: None, step: int, part: tuple):
    """Four patterns with noise: nothing to fetch, and yet something to learn."""
    size, batch_size, seed = args.image_size, args.batch_size, args.seed
    cells = -(-size // 8)
    patterns = np.random.default_rng(seed).integers(0, 256, (4, cells, cells, 3))
    patterns = patterns.repeat(8, axis=1).repeat(8, axis=2)[:, :size, :size]
    index, count = part
    mine = slice(index * batch_size // count, (index + 1) * batch_size // count)
    while True:
        rng = np.random.default_rng((seed, step))
        labels = rng.integers(0, 4, batch_size).astype(np.int32)
        noise = rng.integers(-100, 101, (batch_size, *patterns.shape[1:]))
        pictures = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
        yield pictures[mine], labels[mine]
        step += 1


# ---- Model and step ------------------------------------------------------------------------------
def make_state(classes: int, seed: int) -> dict:
    """Weights, Adam's two moments of each, and the number of steps done."""
    rng = np.random.default_rng(seed)

    def he(*shape):
        return rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)

    weights = {"stem": he(7, 7, 3, CHANNELS[0]), "head": he(CHANNELS[-1], classes)}
    for narrow, wide in itertools.pairwise(CHANNELS):
        weights[f"conv{wide}"] = he(3, 3, narrow, wide)
    zeros = {name: np.zeros_like(weight) for name, weight in weights.items()}
    return {"weights": weights, "mean": zeros, "square": zeros, "step": np.int32(0)}


def predict(weights: dict, pictures, dtype):
    """Logits of a ConvNet; channels are multiples of the MXU's lanes where it is deep."""

    def conv(x, name, stride):
        kernel = weights[name].astype(dtype)
        layout = ("NHWC", "HWIO", "NHWC")
        # The name stands in traces and in what the compiler says.
        with jax.named_scope(name):
            strides = (stride, stride)
            return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", None, None, layout)

    def norm(x):
        # In float32: a mean of squares in bfloat16 keeps two digits.
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
        return (wide * scale).astype(dtype)

    x = pictures.astype(dtype) / 127.5 - 1
    # A stride of 4 first: most of the arithmetic of a ConvNet is in its full-size layers.
    x = conv(x, "stem", 4)
    for wide in CHANNELS[1:]:
        x = conv(jax.nn.relu(norm(x)), f"conv{wide}", 2)
    x = jnp.mean(jax.nn.relu(norm(x)).astype(jnp.float32), axis=(1, 2))
    return x @ weights["head"]


def make_rate(args: argparse.Namespace):
    """The learning rate as a function of the step: constant, one cycle, or a sweep."""
    highest, up = args.learning_rate, 0.3 * (args.steps or 1)  # Smith 2018, arXiv 1803.09820

    def rate_at(step):
        if args.find_lr:
            return 1e-6 * 1.15**step
        if args.anneal == "none":
            return highest
        down = jnp.clip((step - up) / (args.steps - up), 0, 1)
        falling = highest * (1e-4 + (1 - 1e-4) * (1 + jnp.cos(jnp.pi * down)) / 2)
        return jnp.where(step < up, highest * (1 / 25 + (1 - 1 / 25) * step / up), falling)

    return rate_at


def suggest_rate(args: argparse.Namespace, losses: list[float]) -> None:
    """Say where the smoothed loss fell fastest, before it explodes; write lr.json and lr.png."""
    rates = 1e-6 * 1.15 ** np.arange(len(losses))
    means = itertools.accumulate(losses, lambda mean, loss: 0.9 * mean + 0.1 * loss)
    smooth = np.nan_to_num([*means], nan=1e9)
    lowest = int(np.argmin(smooth))
    best = float(rates[np.argmin(np.diff(smooth[: lowest + 2], append=np.inf))])
    found = {"rates": rates.tolist(), "losses": losses, "suggested": best}
    Path(args.out, "lr.json").write_text(json.dumps(found, indent=2))
    how = "falls fastest" if lowest else "is the lowest tried: the loss never fell"
    print(f"learning rate: {best:.3g} {how}, at a batch of {args.batch_size}")
    with contextlib.suppress(ModuleNotFoundError):
        import matplotlib.pyplot as plt

        plt.semilogx(rates, smooth)
        plt.axvline(best, linestyle="--", label=f"{best:.3g} {how}")
        # Where the loss explodes, the rest would be a flat line at the bottom.
        plt.gca().set(xlabel="learning rate", ylabel="loss", ylim=(0, 1.5 * smooth[0]))
        plt.legend()
        plt.savefig(Path(args.out, "lr.png"))


def make_step(rate_at, seed: int, dtype):
    """The training step: (state, images, labels) to (state, figures)."""

    def step(state, pictures, labels):
        # Augmentation on the device: half of the images are seen in a mirror. The key follows
        # from the step, so that a resumed run sees the same ones.
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        mirrored = jax.random.bernoulli(key, shape=labels.shape)[:, None, None, None]
        pictures = jnp.where(mirrored, pictures[:, :, ::-1], pictures)

        def loss_of(weights):
            logits = predict(weights, pictures, dtype)
            wanted = jax.nn.one_hot(labels, logits.shape[-1])
            loss = -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * wanted, axis=-1))
            return loss, jnp.mean(logits.argmax(axis=-1) == labels)

        # The mean over a split batch: XLA puts the all-reduce of the gradients in here.
        (loss, accuracy), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
        count, rate = state["step"] + 1, rate_at(state["step"])
        tree = jax.tree.map
        mean = tree(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
        square = tree(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], gradients)
        weights = tree(
            lambda w, m, s: (
                w - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-7)
            ),
            state["weights"],
            mean,
            square,
        )
        after = {"weights": weights, "mean": mean, "square": square, "step": count}
        return after, {"loss": loss, "accuracy": accuracy}

    return step


def spread_step(step, mesh):
    """Compile for a mesh: the state is on every device, the batch is split over them.

    JAX runs ahead of the host by itself; what TensorFlow calls steps per execution is not needed.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("data"))
    shardings = {"in_shardings": (everywhere, split, split), "out_shardings": everywhere}
    return jax.jit(step, donate_argnums=0, **shardings), everywhere, split


def make_example(batch: int = 256, image_size: int = 224, dtype: str = "bfloat16"):
    """What `tpuctl fit jax-images` compiles: the step of `--data fake`, for a batch."""
    step = make_step(lambda step: 1e-3, seed=0, dtype=dtype)
    pictures = jax.ShapeDtypeStruct((batch, image_size, image_size, 3), "uint8")
    labels = jax.ShapeDtypeStruct((batch,), "int32")
    state = jax.eval_shape(lambda: make_state(classes=4, seed=0))
    return jax.jit(step, donate_argnums=0), (state, pictures, labels)


# ---- Checkpoints ---------------------------------------------------------------------------------
def save(path: Path, state: dict, **more) -> None:
    """Leave the whole file or none; one host writes for all."""
    if jax.process_index() == 0:
        flat = {jax.tree_util.keystr(key): value for key, value in jax.tree.leaves_with_path(state)}
        part = path.with_name("part.npz")
        np.savez(part, **{name: np.asarray(value) for name, value in flat.items()}, **more)
        os.replace(part, path)


def restore(checkpoint: Path, settings: str, state: dict) -> dict:
    """Return the state that was saved last; refuse that of a run with other mathematics."""
    with np.load(checkpoint) as saved:
        was, now = (set(str(text).split(", ")) for text in (saved["settings"], settings))
        if was != now:
            was, now = (", ".join(sorted(part)) or "nothing" for part in (was - now, now - was))
            parser.error(f"--out has a run with {was}, not {now}: --overwrite?")
        keystr = jax.tree_util.keystr
        return jax.tree_util.tree_map_with_path(lambda key, _: saved[keystr(key)], state)


def restore_weights(place: str, weights: dict) -> dict:
    """The weights of another run's model.npz."""
    try:
        with np.load(place) as saved:
            return {name: saved[f"['{name}']"].reshape(w.shape) for name, w in weights.items()}
    except Exception as error:  # missing, damaged, of another model
        parser.error(f"--restore {place}: {error}")


# ---- One run, top to bottom ----------------------------------------------------------------------
def main() -> None:
    """Read the flags, open the mesh, train, and say how fast and how well it went."""
    args = parser.parse_args()
    for name in [n for n, v in vars(args).items() if type(v) is int and v < (n != "seed")]:
        parser.error(f"--{name.replace('_', '-')} must be at least {int(name != 'seed')}")
    if args.cpu_devices:
        jax.config.update("jax_num_cpu_devices", args.cpu_devices)
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    fake = args.data == "fake"
    manifest = None if fake else read_manifest(args.data)
    if manifest and len(manifest["classes"]) < 2:
        raise SystemExit(f"--data: {args.data} has no classes; presize it with --labels.")

    mesh = open_mesh(args.strategy)
    devices, part = list(mesh.devices.flat), (jax.process_index(), jax.process_count())
    share, uneven = divmod(args.batch_size, len(devices))
    if uneven:
        near = max(1, round(args.batch_size / len(devices))) * len(devices)
        parser.error(
            f"--batch-size {args.batch_size} does not divide over {len(devices)} replicas; "
            f"--batch-size {near} would"
        )
    records, held_out = (10 * args.batch_size, 0) if fake else count_records(manifest)
    if args.batch_size > records:
        parser.error(f"--batch-size {args.batch_size} is more than the {records} examples")
    steps_per_epoch = records // args.batch_size
    total_steps = args.steps or (120 if args.find_lr else args.epochs * steps_per_epoch)
    args.steps = total_steps
    wide = args.dtype == "float32" or (args.dtype == "auto" and devices[0].platform != "tpu")
    dtype = jnp.float32 if wide else jnp.bfloat16
    classes = 4 if fake else len(manifest["classes"])

    print(f"mesh: {len(devices)} devices ({devices[0].device_kind}) on {part[1]} hosts")
    print(f"arithmetic: {jnp.dtype(dtype).name}; batch: {args.batch_size}, {share} per replica")
    print(
        f"steps: {total_steps}, {steps_per_epoch} in an epoch; rate {args.learning_rate}, as given"
    )

    made = make_step(make_rate(args), args.seed, dtype)
    step, everywhere, split = spread_step(made, mesh)
    tested = min(args.batch_size, held_out) // len(devices) * len(devices)

    @functools.partial(jax.jit, out_shardings=everywhere)
    def measure(weights, pictures, labels):
        return jnp.mean(predict(weights, pictures, dtype).argmax(axis=-1) == labels)

    def send(local):
        # Every host gives its part; together they are the global batch.
        return [jax.make_array_from_process_local_data(split, array) for array in local]

    # Other devices or more steps continue a run; where one of these differs, it is another run.
    about = zlib.crc32(json.dumps(args.image_size if fake else manifest["shards"]).encode())
    settings = f"batch {args.batch_size}, rate {args.learning_rate}, seed {args.seed}, data {about}"
    settings += f", one cycle of {total_steps} steps" * (args.anneal != "none")
    checkpoint = out / "checkpoint.npz"
    state = make_state(classes, args.seed)
    if args.restore:
        settings += f", from {args.restore}"
        state["weights"] = restore_weights(args.restore, state["weights"])
    if args.overwrite and not args.find_lr and part[0] == 0:
        checkpoint.unlink(missing_ok=True)
    if checkpoint.exists() and not args.overwrite and not args.find_lr:
        state = restore(checkpoint, settings, state)
        print(f"resuming after step {int(state['step'])}", flush=True)
    first_step = int(state["step"])
    if first_step >= total_steps:
        return print(f"{first_step} steps are done already: ask for more, or --overwrite")
    state = jax.device_put(state, everywhere)
    batches = (fake_batches if fake else read_batches)(args, manifest, first_step, part)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    step_s, wait_s, losses, epochs, spoken = [], [], [], [], time.perf_counter()
    for count in range(first_step + 1, total_steps + 1):
        if args.trace and count == first_step + 4:
            jax.profiler.start_trace(str(out / "trace"))
        started = time.perf_counter()
        try:
            local = next(batches)
        except UNREADABLE as error:
            raise SystemExit(
                f"--data: {args.data} is damaged ({error}). See where: tpuctl data verify --deep"
            ) from None
        wait_s.append(time.perf_counter() - started)
        state, figures = step(state, *send(local))
        losses.append((float(figures["loss"]), float(figures["accuracy"])))
        step_s.append(time.perf_counter() - started)
        if args.trace and count == first_step + 3 + args.trace:
            jax.profiler.stop_trace()
        if args.find_lr:
            if not losses[-1][0] < 4 * min(losses)[0]:
                break
            continue
        leaving = bool(stopped)  # asked once: what comes after the save waits for the next step
        if leaving or count % args.save_every == 0:
            save(checkpoint, state, settings=settings)
        if time.perf_counter() - spoken > 1 or count == total_steps:
            spoken = time.perf_counter()
            rate = args.batch_size / step_s[-1]
            print(f"step {count}: loss {figures['loss']:.4f}, {rate:,.0f} examples/s", flush=True)
        if count % steps_per_epoch == 0 or count == total_steps:
            seen = np.mean(losses[-((count - 1) % steps_per_epoch + 1) :], axis=0).round(4).tolist()
            epochs.append({"step": count, "loss": seen[0], "accuracy": seen[1]})
            if tested:
                held = read_held_out(args, manifest, tested, part)
                right = [float(measure(state["weights"], *send(local))) for local in held]
                epochs[-1]["val_accuracy"] = round(float(np.mean(right)), 4)
            print(f"epoch: {epochs[-1]}", flush=True)
        if leaving:
            how = "the same command" + " without --overwrite" * args.overwrite
            print(f"stopped after step {count}; {how} resumes there", flush=True)
            raise SystemExit(128 + stopped[0])

    if args.find_lr:
        return suggest_rate(args, [loss for loss, _ in losses]) if part[0] == 0 else None

    # Each device holds a copy of the step number, which its own execution counted up.
    copies = [(str(s.device), int(s.data) - first_step) for s in state["step"].addressable_shards]
    executed = [{"device": d, "steps": n, "examples": n * share} for d, n in copies]
    save(out / "model.npz", state["weights"])
    first_ms, median_s = round(step_s[0] * 1e3, 2), statistics.median(step_s[1:] or step_s)
    waited = sum(wait_s[1:]) / sum(step_s[1:]) if len(step_s) > 8 else None
    result = {**vars(args), "template": "jax-images", "framework": "jax", "executed": executed}
    result |= {"devices": [str(device) for device in devices], "replicas": len(devices)}
    result |= {"steps": total_steps, "resumed_after_step": first_step}
    result |= {"steps_per_epoch": steps_per_epoch, "first_step_ms": first_ms}
    result |= {"step_ms": {"p50": round(median_s * 1e3, 3)}, "epochs": epochs}
    result |= {"train_accuracy": epochs[-1]["accuracy"]}
    result |= {"test_accuracy": epochs[-1].get("val_accuracy")}
    result |= {"examples_per_s": round(args.batch_size / median_s, 1)}
    result |= {"input_wait_fraction": waited and round(waited, 4), "model": str(out / "model.npz")}
    if part[0] == 0:
        (out / "result.json").write_text(json.dumps(result, indent=2))
    # Last, and kept: the same command with more steps continues here.
    save(checkpoint, state, settings=settings)
    print(f"step: {median_s * 1e3:.1f} ms (first, with compilation: {first_ms:.0f} ms)")
    print(f"speed: {result['examples_per_s']} examples/s")
    if waited is not None:
        print(f"waited for images: {waited:.0%} of the time")
    print(f"executed: {executed}")


if __name__ == "__main__":
    main()
