"""Train an image classifier in plain JAX on a mesh of all devices, one host or many.

    python jax_images.py --data shards --epochs 2  # made by tpuctl data presize
    python jax_images.py --data fake --steps 20 --cpu-devices 4  # no data, a mesh of four

No Keras, no TensorFlow: the shards are read with the standard library, images are decoded with
Pillow in threads and flipped at random on the device. On several hosts start the same command on
each of them with --strategy distributed+mesh; every host reads its own part of each batch.
A tenth of the images is held out and tells the accuracy after each epoch. --find-lr suggests a
learning rate, --anneal cosine goes up to it and down again (one cycle). The same command resumes
an interrupted run and ends with the same weights. How long devices wait for images is measured.
Digits 0, 1 and 2 of scikit-learn, --batch-size 24 --epochs 5, two vCPUs: 96 % of the 24 held out.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all devices and hosts")
parser.add_argument("--out", default="training/jax-images", help="checkpoint, model, result.json")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--strategy", default="auto", help="'auto' is a mesh of all of this host",
         choices=["auto", "default", "mesh", "single", "cpu", "distributed+mesh"])  # fmt: skip
parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam; never scaled")
parser.add_argument("--anneal", default="none", choices=["none", "cosine"], help="one cycle or not")
parser.add_argument("--find-lr", action="store_true", help="only look for a learning rate")
parser.add_argument("--restore", help="begin with the weights of this model.npz")
parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--image-size", type=int, default=64, help="only for --data fake")
parser.add_argument("--trace", type=int, help="number of steps to record into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")

FRAMEWORKS = ("jax",)  # `tpuctl launch` picks from these
CHANNELS = (32, 64, 128, 256)
# Every tenth record of a shard is not trained on: each epoch ends with a validation on them.
HELD_OUT = 10


# ---- Data ----------------------------------------------------------------------------------------
def read_bytes(place: str) -> bytes:
    """A local file, or an object of a bucket where gcsfs is installed."""
    if not place.startswith("gs://"):
        return Path(place).read_bytes()
    import gcsfs

    return gcsfs.GCSFileSystem().cat_file(place)


def read_manifest(args: argparse.Namespace) -> dict:
    """Read which files belong to the data set; anything else in the folder is not ours."""
    if args.data == "fake":
        # Enough for ten batches, and for what is held out of them.
        shard = {"name": f"fake {args.image_size}", "records": 12 * args.batch_size}
        return {"classes": "0123", "shards": [shard], "options": {"size": [args.image_size]}}
    place = f"{args.data.rstrip('/')}/manifest.json"
    try:
        manifest = json.loads(read_bytes(place))
        encode, form = manifest["options"]["encode"], manifest["options"]["format"]
    except (ImportError, OSError, KeyError, TypeError, ValueError) as error:
        parser.error(f"--data: could not read {place}: {error}. Without data: --data fake")
    if (encode, form) != ("jpeg", "tfrecord") or len(manifest["classes"]) < 2:
        how = "tpuctl data presize --labels folder --encode jpeg --format tfrecord"
        parser.error(f"--data: {place} is of {encode} in {form}, or has no classes: {how}")
    return manifest


def read_shard(args: argparse.Namespace, shard: dict) -> list:
    """The records of a TFRecord file: a length, its checksum, the record, its checksum."""
    if args.data == "fake":
        return make_fake(args.image_size, args.seed, shard["records"])
    content, at, records = read_bytes(f"{args.data}/{shard['name']}"), 0, []
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        records.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    return records


def make_fake(side: int, seed: int, count: int) -> list:
    """Four patterns with noise: nothing to fetch, and yet something to learn."""
    rng, cells, labels = np.random.default_rng(seed), -(-side // 8), np.arange(320) % 4
    patterns = rng.integers(0, 256, (4, cells, cells, 3)).repeat(8, axis=1).repeat(8, axis=2)
    noise = rng.integers(-100, 101, (320, side, side, 3), np.int16)
    pictures = np.clip(patterns.astype(np.int16)[labels, :side, :side] + noise, 0, 255)
    examples = zip(pictures.astype(np.uint8), labels, strict=True)
    return list(itertools.islice(itertools.cycle(examples), count))


def varint(stream: io.BytesIO) -> int:
    """A whole number of a protobuf message: seven bits in each byte, the lowest first."""
    number, shift, byte = 0, 0, 128
    while byte > 127:
        byte = stream.read(1)[0]
        number, shift = number | (byte & 127) << shift, shift + 7
    return number


def fields(message: bytes):
    """(number, value) of a protobuf message: bytes for what has a length, numbers for the rest."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        key, value = varint(stream), varint(stream)
        yield key >> 3, stream.read(value) if key & 7 == 2 else value


def decode(record, side: int):
    """The image of a record, cut from the middle, and its label."""
    if isinstance(record, tuple):
        return record  # of --data fake
    from PIL import Image

    found = {}
    # A tf.train.Example: features > feature > (name, list > value).
    for _, features in fields(record):
        for _, entry in fields(features):
            name, feature = (value for _, value in sorted(fields(entry)))
            ((_, values),) = fields(feature)
            found[name] = dict(fields(values)).get(1, b"")
    label = found[b"label"]
    picture = Image.open(io.BytesIO(found[b"image"])).convert("RGB")
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = np.asarray(picture.crop((left, top, left + side, top + side)))
    return picture, label if isinstance(label, int) else varint(io.BytesIO(label))


def read_epoch(args: argparse.Namespace, manifest: dict, epoch=0, skip=0, held_out=False):
    """The records of an epoch after the first `skip`, or the held-out ones, in the seed's order."""
    rng = np.random.default_rng((args.seed, epoch))
    for shard in rng.permutation(manifest["shards"]):
        rows = np.arange(1, shard["records"] + 1)
        order = rng.permutation(rows[(rows % HELD_OUT == 0) == held_out])
        if skip < len(order):  # otherwise the shard is not even opened
            records = read_shard(args, shard)
            yield from (records[row - 1] for row in order[skip:])
        skip = max(0, skip - len(order))


def read_endlessly(args: argparse.Namespace, manifest: dict, first: int, per_epoch: int):
    """The records of all epochs from a record on."""
    epoch, skip = divmod(first, per_epoch)
    while True:
        yield from itertools.islice(read_epoch(args, manifest, epoch, skip), per_epoch - skip)
        epoch, skip = epoch + 1, 0


def load_batches(records, side: int, batch_size: int, part: tuple):
    """(uint8 images, labels) of records: this host's part of each full batch."""
    (index, count), sides, ahead = part, itertools.repeat(side), ()
    mine = slice(index * batch_size // count, (index + 1) * batch_size // count)
    with ThreadPoolExecutor() as threads:
        while ahead is not None:
            batch = list(itertools.islice(records, batch_size))
            # One batch is being decoded while the device works on the one before.
            later = threads.map(decode, batch[mine], sides) if len(batch) == batch_size else None
            if ahead:
                pictures, labels = zip(*ahead, strict=True)
                yield np.stack(pictures), np.array(labels, np.int32)
            ahead = later


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
        layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "padding": "SAME"}
        # The name stands in traces and in what the compiler says.
        with jax.named_scope(name):
            kernel = weights[name].astype(dtype)
            return jax.lax.conv_general_dilated(x, kernel, (stride, stride), **layout)

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


def rate_of(args: argparse.Namespace, step):
    """The learning rate of a step: constant, of one cycle, or of the sweep of --find-lr."""
    if args.find_lr:
        return 1e-6 * 1.15**step
    if args.anneal == "none":
        return args.learning_rate
    up = 0.3 * args.steps  # Smith 2018, arXiv 1803.09820
    rising = 1 / 25 + (1 - 1 / 25) * step / up
    falling = 1e-4 + (1 - 1e-4) * (1 + jnp.cos(jnp.pi * (step - up) / (args.steps - up))) / 2
    return args.learning_rate * jnp.where(step < up, rising, falling)


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


def make_step(args: argparse.Namespace, dtype):
    """The training step: (state, images, labels) to (state, figures)."""

    def step(state, pictures, labels):
        # The device mirrors half of the images; the same ones in a resumed run.
        key = jax.random.fold_in(jax.random.key(args.seed), state["step"])
        mirrored = jax.random.bernoulli(key, shape=labels.shape)[:, None, None, None]
        pictures = jnp.where(mirrored, pictures[:, :, ::-1], pictures)

        def loss_of(weights):
            logits = predict(weights, pictures, dtype)
            wanted = jax.nn.one_hot(labels, logits.shape[-1])
            loss = -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * wanted, axis=-1))
            return loss, jnp.mean(logits.argmax(axis=-1) == labels)

        # The mean over a split batch: XLA puts the all-reduce of the gradients in here.
        (loss, accuracy), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
        count, tree, rate = state["step"] + 1, jax.tree.map, rate_of(args, state["step"])
        # Adam; its two moments are biased towards zero at first.
        mean = tree(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
        square = tree(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], gradients)
        rate *= jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        changes = tree(lambda m, s: rate * m / (jnp.sqrt(s) + 1e-7), mean, square)
        weights = tree(jnp.subtract, state["weights"], changes)
        after = {"weights": weights, "mean": mean, "square": square, "step": count}
        return after, {"loss": loss, "accuracy": accuracy}

    return step


def make_example(batch: int = 256, image_size: int = 224, dtype: str = "bfloat16"):
    """What `tpuctl fit jax-images` compiles: the step of `--data fake`, for a batch."""
    step = make_step(parser.parse_args([]), dtype)
    pictures = jax.ShapeDtypeStruct((batch, image_size, image_size, 3), "uint8")
    labels = jax.ShapeDtypeStruct((batch,), "int32")
    state = jax.eval_shape(lambda: make_state(classes=4, seed=0))
    return jax.jit(step, donate_argnums=0), (state, pictures, labels)


# ---- Checkpoints ---------------------------------------------------------------------------------
def save(path: Path, state: dict, **more) -> None:
    """Leave the whole file or none; one host writes for all."""
    if jax.process_index() == 0:
        flat = {keystr(key): np.asarray(a) for key, a in jax.tree.leaves_with_path(state)}
        part = path.with_name("part.npz")
        np.savez(part, **flat, **more)
        os.replace(part, path)


def read_arrays(path: str | Path, like: dict, settings: str | None = None) -> dict:
    """What `save` wrote, in the structure of `like`; refuse that of a run with other settings."""
    with np.load(path) as saved:
        if settings:
            was, now = (set(str(text).split(", ")) for text in (saved["settings"], settings))
            if was != now:
                was, now = (", ".join(sorted(d)) or "nothing" for d in (was - now, now - was))
                parser.error(f"--out has a run with {was}, not {now}: --overwrite?")
        return jax.tree.map_with_path(lambda key, a: saved[keystr(key)].reshape(a.shape), like)


# ---- One run, top to bottom ----------------------------------------------------------------------
def main() -> None:
    """Read the flags, open the mesh, train, and say how fast and how well it went."""
    args = parser.parse_args()
    for name in [n for n, v in vars(args).items() if type(v) is int and v < (n != "seed")]:
        parser.error(f"--{name.replace('_', '-')} must be at least {int(name != 'seed')}")
    jax.config.update("jax_num_cpu_devices", args.cpu_devices or -1)
    out, batch_size = Path(args.out), args.batch_size
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    manifest = read_manifest(args)
    held_out = sum(shard["records"] // HELD_OUT for shard in manifest["shards"])
    trained = sum(shard["records"] for shard in manifest["shards"]) - held_out
    if args.strategy == "distributed+mesh":
        # Before anything else; on Cloud TPUs and GKE it finds the other hosts by itself.
        jax.distributed.initialize()
    devices, part = jax.devices(), (jax.process_index(), jax.process_count())
    if args.strategy in ("default", "single", "cpu"):
        devices = devices[:1]
    near = min(batch_size, trained) // len(devices) * len(devices)
    if near != batch_size:
        parser.error(f"{trained} images on {len(devices)} devices: --batch-size {near} would do")
    share, steps_per_epoch = batch_size // len(devices), trained // batch_size
    tested = min(batch_size, held_out) // len(devices) * len(devices)
    args.steps = args.steps or (120 if args.find_lr else args.epochs * steps_per_epoch)
    wide = args.dtype == "float32" or (args.dtype == "auto" and devices[0].platform != "tpu")
    dtype = jnp.float32 if wide else jnp.bfloat16
    print(f"{len(devices)} x {devices[0].device_kind} on {part[1]} hosts, {share} images each")
    print(f"tested in full batches of {tested} of the {held_out} held out")
    # The state is on every device, a batch is split over them.
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    step = jax.jit(make_step(args, dtype), out_shardings=everywhere, donate_argnums=0)

    @jax.jit
    def measure(weights, pictures, labels):
        return jnp.mean(predict(weights, pictures, dtype).argmax(axis=-1) == labels)

    def send(local):
        # Every host gives its part; together they are the global batch.
        return [jax.make_array_from_process_local_data(split, array) for array in local]

    # Other devices or more steps continue a run; where one of these differs, it is another run.
    about = zlib.crc32(json.dumps(manifest["shards"]).encode())
    settings = f"batch {batch_size}, rate {args.learning_rate}, seed {args.seed}, data {about}"
    settings += f", one cycle of {args.steps} steps" * (args.anneal != "none")
    checkpoint, state = out / "checkpoint.npz", make_state(len(manifest["classes"]), args.seed)
    if args.restore:
        settings += f", from {args.restore}"
        try:
            state["weights"] = read_arrays(args.restore, state["weights"])
        except Exception as error:  # missing, damaged, of another model
            parser.error(f"--restore {args.restore}: {error}")
    if args.overwrite and not args.find_lr and part[0] == 0:
        checkpoint.unlink(missing_ok=True)
    if checkpoint.exists() and not args.overwrite and not args.find_lr:
        state = read_arrays(checkpoint, state, settings)
        print(f"resuming after step {int(state['step'])}", flush=True)
    elif (out / "model.npz").exists() and not args.overwrite and not args.find_lr:
        parser.error(f"{out} has a model and no checkpoint: --overwrite?")
    first_step = int(state["step"])
    print(f"{args.steps} steps, {steps_per_epoch} in an epoch; {dtype.__name__}; {settings}")
    if first_step >= args.steps:
        return print(f"{first_step} steps are done already: ask for more, or --overwrite")
    state = jax.device_put(state, everywhere)
    side = min(manifest["options"]["size"])
    records = read_endlessly(args, manifest, first_step * batch_size, steps_per_epoch * batch_size)
    batches = load_batches(records, side, batch_size, part)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    step_s, wait_s, losses, epochs, spoken = [], [], [], [], time.perf_counter()
    for count in range(first_step + 1, args.steps + 1):
        if args.trace and count == first_step + 4:
            jax.profiler.start_trace(str(out / "trace"))
        started = time.perf_counter()
        try:
            local = next(batches)
        except (OSError, IndexError, KeyError, ValueError) as error:
            raise SystemExit(f"--data is damaged ({error}): tpuctl data verify --deep") from None
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
        if time.perf_counter() - spoken > 1 or count == args.steps:
            spoken = time.perf_counter()
            rate = batch_size / step_s[-1]
            print(f"step {count}: loss {figures['loss']:.4f}, {rate:,.0f} examples/s", flush=True)
        if count % steps_per_epoch == 0 or count == args.steps:
            seen = np.mean(losses[-((count - 1) % steps_per_epoch + 1) :], axis=0).round(4).tolist()
            epochs.append({"step": count, "loss": seen[0], "accuracy": seen[1]})
            if tested:
                held = load_batches(read_epoch(args, manifest, held_out=True), side, tested, part)
                right = [float(measure(state["weights"], *send(local))) for local in held]
                epochs[-1]["val_accuracy"] = round(float(np.mean(right)), 4)
            print(f"epoch: {epochs[-1]}", flush=True)
        if leaving:
            print(f"stopped after step {count}; the same command without --overwrite resumes there")
            raise SystemExit(128 + stopped[0])

    if args.find_lr:
        return suggest_rate(args, [loss for loss, _ in losses]) if part[0] == 0 else None
    # Each device holds a copy of the step number, which its own execution counted up.
    copies = [(str(s.device), int(s.data) - first_step) for s in state["step"].addressable_shards]
    executed = [{"device": d, "steps": n, "examples": n * share} for d, n in copies]
    save(out / "model.npz", state["weights"])
    first_ms, median_s = round(step_s[0] * 1e3, 2), float(np.median(step_s[1:] or step_s))
    waited = round(sum(wait_s[1:]) / sum(step_s[1:]), 4) if len(step_s) > 8 else None
    result = {**vars(args), "template": "jax-images", "framework": "jax", "executed": executed}
    result |= {"devices": [*map(str, devices)], "replicas": len(devices), "epochs": epochs}
    result |= {"steps_per_epoch": steps_per_epoch, "resumed_after_step": first_step}
    result |= {"first_step_ms": first_ms, "step_ms": {"p50": round(median_s * 1e3, 3)}}
    result |= {"examples_per_s": round(batch_size / median_s, 1), "model": str(out / "model.npz")}
    result |= {"input_wait_fraction": waited, "test_accuracy": epochs[-1].get("val_accuracy")}
    if part[0] == 0:
        (out / "result.json").write_text(json.dumps(result, indent=2))
    # Last, and kept: the same command with more steps continues here.
    save(checkpoint, state, settings=settings)
    print(f"step: {median_s * 1e3:.1f} ms (first, with compilation: {first_ms:.0f} ms)")
    print(f"share of the time spent waiting for images: {waited}; executed: {executed}")


if __name__ == "__main__":
    main()
