"""Train an image classifier with PyTorch/XLA on one TPU device or on all of them.

    python torch_xla_images.py --data shards --epochs 5  # made by tpuctl data presize
    python torch_xla_images.py --data fake --steps 20 --cpu-devices 2  # no data, any laptop
    python torch_xla_images.py --data fake --find-lr     # suggests a learning rate
    python torch_xla_images.py --data shards --predict   # with the model in --out

Several devices are a mesh in one process (xla-spmd) or have a process each (xla-launch). The same
command resumes an interrupted run at the next step, a killed one at its last checkpoint, and ends
with the same weights. Of one release: pip install torch==2.9.0 'torch_xla[tpu]==2.9.0'
Digits 0, 1 and 2 of scikit-learn, --batch-size 24 --epochs 5, two vCPUs: 100 % of the 24 tested.
"""

import argparse
import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

# With a mesh the compiler of torch_xla 2.9 warns of its own age, once for every program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
CHIPS = [*Path("/dev").glob("accel*")] or [*Path("/dev").glob("vfio/[0-9]*")]
os.environ.setdefault("PJRT_DEVICE", "TPU" if CHIPS else "CPU")
import fsspec  # noqa: E402
import torch  # noqa: E402
import torch_xla  # noqa: E402
import torch_xla.core.xla_model as xm  # noqa: E402
import torch_xla.distributed.spmd as xs  # noqa: E402
import torch_xla.runtime as xr  # noqa: E402
from torch import nn  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all devices together")
parser.add_argument("--out", default="training/torch-xla-images", help="checkpoint, model, result")
parser.add_argument("--overwrite", action="store_true", help="start over where OUT has a run")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--strategy", default="auto", help="one device, a mesh of all, or processes",
                    choices=["auto", "cpu", "xla-single", "xla-spmd", "xla-launch",
                             "xla-launch-pop-addresses", "xla-launch-all-hosts"])  # fmt: skip
parser.add_argument("--learning-rate", type=float, default=0.05, help="the highest; never scaled")
parser.add_argument("--anneal", default="cosine", help="up and down in one cycle; 'none' stays",
                    choices=["none", "linear", "exponential", "cosine"])  # fmt: skip
parser.add_argument("--find-lr", action="store_true", help="only look for a learning rate")
parser.add_argument("--predict", action="store_true", help="only predict; needs --out of a run")
parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
parser.add_argument("--restore", help="begin with the weights of this model.pt")
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--image-size", type=int, default=64, help="only for --data fake")
parser.add_argument("--trace", type=int, help="number of steps to record into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")

FRAMEWORKS = ("torch",)  # `tpuctl launch` picks from these


# ---- Devices -------------------------------------------------------------------------------------
def open_devices(args: argparse.Namespace) -> str:
    """Choose the strategy, and set what torch_xla reads when it opens the devices."""
    if args.strategy == "xla-launch-pop-addresses":  # on Kaggle it names too few processes
        os.environ.pop("TPU_PROCESS_ADDRESSES", None)
    if args.cpu_devices or args.strategy == "cpu":
        os.environ["PJRT_DEVICE"] = "CPU"
    on_cpu, strategy = os.environ["PJRT_DEVICE"] == "CPU", args.strategy
    virtual = args.cpu_devices or int(os.environ.get("CPU_NUM_DEVICES", "1"))
    if strategy == "auto":
        strategy = "xla-spmd" if (virtual if on_cpu else len(CHIPS)) > 1 else "xla-single"
    if on_cpu:
        # With a process or thread for each virtual CPU device, torch_xla 2.9 waits forever.
        strategy = strategy if strategy == "xla-spmd" else "xla-single"
        os.environ["CPU_NUM_DEVICES"] = str(virtual if strategy == "xla-spmd" else 1)
    if strategy == "xla-spmd":
        xr.use_spmd()
        xs.set_global_mesh(xs.get_1d_mesh("data"))
    return strategy


def share(array: np.ndarray):
    """Send an array to this process's device, or its rows to the devices of the mesh."""
    tensor = torch.from_numpy(array).to(torch_xla.device())
    if mesh := xs.get_global_mesh():
        xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
    return tensor


# ---- Data ----------------------------------------------------------------------------------------
def read_manifest(folder: str) -> dict:
    """Read which files belong to the data set; anything else in the folder is not ours."""
    place = f"{folder.rstrip('/')}/manifest.json"
    try:
        with fsspec.open(place) as file:  # from a bucket where gcsfs is installed
            manifest = json.load(file)
        encode, form = manifest["options"]["encode"], manifest["options"]["format"]
    except (ImportError, OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"--data: could not read {place}: {error}. Without: --data fake") from None
    if (encode, form) != ("jpeg", "tfrecord") or len(manifest["classes"]) < 2:
        how = "tpuctl data presize --labels folder --encode jpeg --format tfrecord"
        raise SystemExit(f"--data: {place} is of {encode} in {form}, or has no classes: {how}")
    return manifest


def open_shards(folder: str, manifest: dict) -> list:
    """The records of all shards: local files are mapped, those of a bucket held in memory."""
    records, bucket = [], fsspec.filesystem("gs") if folder.startswith("gs://") else None
    for place in (f"{folder.rstrip('/')}/{shard['name']}" for shard in manifest["shards"]):
        content = bucket.cat_file(place) if bucket else np.memmap(place, mode="r")
        shard, at = memoryview(content), 0
        while at < len(shard):
            # TFRecord: a length, its checksum, the record, its checksum.
            length = int.from_bytes(shard[at : at + 8], "little")
            records.append(shard[at + 12 : at + 12 + length])
            at += 16 + length
    return records


def varint(stream) -> int:
    """A whole number of a protobuf message: seven bits in each byte, the lowest first."""
    number, shift, byte = 0, 0, 128
    while byte > 127:
        byte = stream.read(1)[0]
        number, shift = number | (byte & 127) << shift, shift + 7
    return number


def fields(message):
    """(number, value) of a protobuf message: bytes for what has a length, numbers for the rest."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        key, value = varint(stream), varint(stream)
        yield key >> 3, stream.read(value) if key & 7 == 2 else value


def decode(records: list, side: int, row: int):
    """The image of a record, cut from the middle, and its label."""
    from PIL import Image

    found = {}
    # A tf.train.Example: features > feature > (name, list > value).
    for _, features in fields(records[row]):
        for _, entry in fields(features):
            name, feature = (value for _, value in sorted(fields(entry)))
            ((_, values),) = fields(feature)
            found[name] = dict(fields(values)).get(1, b"")
    label = found[b"label"]
    picture = Image.open(io.BytesIO(found[b"image"])).convert("RGB")
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = np.asarray(picture.crop((left, top, left + side, top + side)))
    return picture, label if isinstance(label, int) else varint(io.BytesIO(label))


def make_fake(side: int, seed: int) -> list:
    """Four patterns with noise: nothing to fetch, and yet something to learn."""
    rng, cells, labels = np.random.default_rng(seed), -(-side // 8), np.arange(320) % 4
    patterns = rng.integers(0, 256, (4, cells, cells, 3)).repeat(8, axis=1).repeat(8, axis=2)
    noise = rng.integers(-100, 101, (320, side, side, 3), np.int16)
    pictures = np.clip(patterns.astype(np.int16)[labels, :side, :side] + noise, 0, 255)
    return list(zip(pictures.astype(np.uint8), labels, strict=True))


def read_batches(load, rows, each: int, seed: int, step: int, part: tuple):
    """Endless full batches of one process from a step on: (uint8 images, labels, mirrored)."""
    rank, world = part
    shape = (len(rows) // (each * world), world, each)
    epoch, done = divmod(step, shape[0])
    with ThreadPoolExecutor() as threads:
        ahead = None
        while True:
            # From seed and epoch alone, so that a resumed run sees the same; each process its part.
            rng = np.random.default_rng((seed, epoch))
            order = rng.permutation(rows)[: math.prod(shape)].reshape(shape)[done:, rank]
            mirrored = (rng.random(shape) < 0.5)[done:, rank]
            for batch in zip(order, mirrored, strict=True):
                # One batch is being decoded while the device works on the one before.
                following = threads.map(load, batch[0]), batch[1]
                if ahead:
                    images, labels = zip(*ahead[0], strict=True)
                    yield np.stack(images), np.array(labels, np.int64), ahead[1]
                ahead = following
            epoch, done = epoch + 1, 0


# ---- Model and step ------------------------------------------------------------------------------
def make_model(classes: int, seed: int):
    """A ConvNet; channels are multiples of the MXU's lanes where it is deep."""
    torch.manual_seed(seed)
    layers = []
    # A stride of 4 first: most of the arithmetic of a ConvNet is in its full-size layers.
    for narrow, wide, stride in ((3, 32, 4), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
        layers += [nn.Conv2d(narrow, wide, 2 * stride - 1, stride, stride - 1, bias=False)]
        # Groups of an image's own channels: nothing to exchange between devices.
        layers += [nn.GroupNorm(8, wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def one_cycle(kind: str, step: int, steps: int, highest: float) -> float:
    """Up for 30 % of the steps, then down to nearly nothing (Smith 2018, arXiv 1803.09820)."""
    if kind == "none":
        return highest
    up = max(1, round(0.3 * steps))
    # How far the rate is on its way between the highest and the lowest of this part.
    lowest, away = (1 / 25, 1 - step / up) if step < up else (1e-4, (step - up) / (steps - up))
    if kind == "exponential":
        return highest * lowest**away
    if kind == "cosine":
        away = (1 - math.cos(math.pi * away)) / 2
    return highest * (1 - (1 - lowest) * away)


def to_float(pictures):
    """Bytes travel to the device, a quarter of what floats would be; it scales them."""
    return pictures.permute(0, 3, 1, 2).float() / 127.5 - 1


def train_step(model, optimizer, batch, rate: float, world: int, dtype):
    """One step on this device; the gradients are the mean over all of them."""
    pictures, labels, mirrored = batch
    pictures = torch.where(mirrored[:, None, None, None], pictures.flip(2), pictures)
    optimizer.zero_grad()
    with torch.autocast("xla", torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model(to_float(pictures))
    loss = nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    # All in one exchange instead of one for every layer; nothing to do where there is one process.
    xm.all_reduce(xm.REDUCE_SUM, [p.grad for p in model.parameters()], scale=1 / world)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    return loss.detach()


def predict(model, load, rows, each: int, part: tuple) -> np.ndarray:
    """The class of every row, in their order."""
    rank, world = part
    # Filled up to whole batches, so that nothing is compiled for the last one.
    padded = np.resize(rows, (-(-len(rows) // (each * world)), world, each))
    found = []
    with torch.no_grad(), ThreadPoolExecutor() as threads:
        for batch in padded[:, rank]:
            decoded, _ = zip(*threads.map(load, batch), strict=True)
            found.append(xm.all_gather(model(to_float(share(np.stack(decoded)))).argmax(1)))
            torch_xla.sync()
    return torch.cat(found).cpu().numpy()[: len(rows)]


def save(path: Path, state: dict) -> None:
    """Leave the whole file or none."""
    torch.save(xm._maybe_convert_to_cpu(state), f"{path}.part")
    os.replace(f"{path}.part", path)


def suggest_rate(args: argparse.Namespace, rates: list[float], losses: list[float]) -> None:
    """Say where the smoothed loss fell fastest, before it explodes; write lr.json and lr.png."""
    losses = np.nan_to_num(losses, nan=1e9, posinf=1e9).tolist()  # JSON has neither
    smooth = np.array([*itertools.accumulate(losses, lambda mean, loss: 0.9 * mean + 0.1 * loss)])
    lowest = int(np.argmin(smooth))
    best = rates[int(np.argmin(np.diff(smooth[: lowest + 2], append=np.inf)))]
    found = {"rates": rates, "losses": losses, "suggested": best}
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


# ---- One process, top to bottom ------------------------------------------------------------------
def work(index: int, args: argparse.Namespace) -> None:
    """What every process does: train, look for a learning rate, or predict."""
    rank, world = part = xr.global_ordinal(), xr.world_size()
    mesh = xs.get_global_mesh()
    replicas = int(mesh.size()) if mesh else world
    say = functools.partial(print, flush=True) if rank == 0 else lambda *words: None
    out, batch_size = Path(args.out), args.batch_size
    if args.data == "fake":
        manifest = {"classes": "0123", "shards": args.image_size}
        load = (records := make_fake(args.image_size, args.seed)).__getitem__
    else:
        manifest = read_manifest(args.data)
        records = open_shards(args.data, manifest)
        load = functools.partial(decode, records, min(manifest["options"]["size"]))
    names = list(manifest["classes"])
    if batch_size % replicas:
        near = max(1, round(batch_size / replicas)) * replicas
        raise SystemExit(f"--batch-size {batch_size} on {replicas} devices: {near} would divide")
    # A tenth, chosen by the seed, is kept for the test.
    order = np.random.default_rng(args.seed).permutation(len(records))
    test, rows = np.split(order, [len(order) // 10])
    if batch_size > len(rows):
        raise SystemExit(f"--batch-size {batch_size} is more than the {len(rows)} examples")
    narrow = args.dtype == "bfloat16" or (args.dtype == "auto" and xr.device_type() == "TPU")
    dtype = torch.bfloat16 if narrow else torch.float32
    each, steps_per_epoch = batch_size // world, len(rows) // batch_size
    args.steps = args.steps or (100 if args.find_lr else args.epochs * steps_per_epoch)
    say(f"{replicas} x {xr.device_type()}, {batch_size // replicas} images of each batch; {dtype}")
    say(f"{args.steps} steps, {steps_per_epoch} per epoch; {len(rows)} images, {len(test)} to test")
    # Every process makes the same weights: nothing needs to be sent at the start.
    model = make_model(len(names), args.seed).to(torch_xla.device())
    known = out / "model.pt" if args.predict else args.restore
    if known:
        try:
            model.load_state_dict(torch.load(known, weights_only=True))
        except Exception as error:  # missing, damaged, of another model
            raise SystemExit(f"Could not read the model {known}: {error}. Train first?") from None
    if args.predict:
        found = predict(model, load, np.arange(len(records)), each, part)
        if rank == 0:
            with (out / "predictions.csv").open("w", newline="") as file:
                lines = enumerate(names[label] for label in found)
                csv.writer(file).writerows([("picture", "class"), *lines])
        return say(f"{len(found)} predictions in {out / 'predictions.csv'}")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    # Other devices or more steps continue a run; where one of these differs, it is another run.
    settings = f"batch {batch_size}, rate {args.learning_rate}, anneal {args.anneal}"
    settings += f", seed {args.seed}, data {zlib.crc32(json.dumps(manifest['shards']).encode())}"
    settings += f", from {args.restore}" if args.restore else ""
    checkpoint, first_step, start, end = out / "checkpoint.pt", 0, 0, args.steps
    fresh = args.overwrite or args.find_lr
    if checkpoint.exists() and not fresh:
        saved = torch.load(checkpoint, weights_only=True)
        first_step, (start, end) = saved["step"], saved["cycle"]
        # After one whole cycle, more steps are another one; in its middle it cannot be stretched.
        if first_step >= end or args.anneal == "none":
            start, end = end, args.steps
        was = {*saved["settings"].split(", "), f"steps {end}"}
        now = {*settings.split(", "), f"steps {args.steps}"}
        if was != now:
            was, now = (", ".join(sorted(one)) or "nothing" for one in (was - now, now - was))
            raise SystemExit(f"--out has a run with {was}, not {now}: --overwrite?")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        say(f"resuming after step {first_step}")
    elif (out / "model.pt").exists() and not fresh:
        raise SystemExit(f"{out} has a model and no checkpoint: --overwrite?")
    if first_step >= args.steps:
        return say(f"{first_step} steps are done already: ask for more, or --overwrite")
    torch_xla.sync()

    def save_checkpoint(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(checkpoint, {**state, "step": step, "settings": settings, "cycle": [start, end]})

    stopped = []
    if world == 1:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: stopped.append(number))
    batches = read_batches(load, rows, each, args.seed, first_step, part)
    test_labels = [load(row)[1] for row in test]
    # The proof that every device worked: it adds up its own steps and examples.
    counter = share(np.zeros((replicas // world, 2), np.int64))
    step_s, wait_s, rates, losses, epochs, spoken = [], [], [], [], [], time.perf_counter()
    for step in range(first_step, args.steps):
        if args.trace and step == first_step + 3:
            torch_xla.debug.profiler.start_trace(str(out / "trace"))
        begun = time.perf_counter()
        try:
            local = next(batches)
        except (OSError, IndexError, KeyError, ValueError) as error:
            raise SystemExit(f"--data is damaged ({error}): tpuctl data verify --deep") from None
        wait_s.append(time.perf_counter() - begun)
        batch = [share(array) for array in local]
        rates.append(one_cycle(args.anneal, step - start, end - start, args.learning_rate))
        if args.find_lr:
            rates[-1] = 1e-6 * 1e7 ** (step / args.steps)  # from useless to explosive
        loss = train_step(model, optimizer, batch, rates[-1], world, dtype)
        ones = torch.ones_like(batch[1]).reshape(len(counter), -1)
        counter += torch.stack([ones[:, 0], ones.sum(1)], dim=1)
        # Until here nothing was computed: sync compiles (once) and runs the step.
        torch_xla.sync()
        losses.append(float(loss))
        step_s.append(time.perf_counter() - begun)
        if args.trace and step == first_step + 2 + args.trace:
            torch_xla.debug.profiler.stop_trace()
        if args.find_lr and not losses[-1] < 4 * min(losses):
            break
        leaving = bool(stopped)  # asked once: what comes after the save waits for the next step
        if rank == 0 and not args.find_lr and (leaving or (step + 1) % args.save_every == 0):
            save_checkpoint(step + 1)
        if time.perf_counter() - spoken > 1 or step + 1 == args.steps:
            spoken = time.perf_counter()
            say(f"step {step + 1}: loss {loss:.4f}, {batch_size / step_s[-1]:,.0f} examples/s")
        if not args.find_lr and ((step + 1) % steps_per_epoch == 0 or step + 1 == args.steps):
            right = predict(model, load, test, each, part) == test_labels
            loss = round(float(np.mean(losses[-(step % steps_per_epoch + 1) :])), 4)
            accuracy = round(float(right.mean()), 4)
            epochs.append({"step": step + 1, "loss": loss, "val_accuracy": accuracy})
            say(f"epoch: {epochs[-1]}")
        if leaving:
            say(f"stopped after step {step + 1}; run it again without --overwrite")
            raise SystemExit(128 + stopped[0])
    if args.find_lr:
        return suggest_rate(args, rates, losses) if rank == 0 else None
    if mesh:
        shards = xs.wrap_if_sharded(counter).local_shards
        counts = [(shard.shard_device, *shard.data.flatten().tolist()) for shard in shards]
    else:
        every = enumerate(xm.all_gather(counter).tolist())
        counts = [(f"{xr.device_type()}:{number}", *count) for number, count in every]
    executed = [{"device": name, "steps": n, "examples": seen} for name, n, seen in counts]
    if rank:
        return
    save(out / "model.pt", model.state_dict())
    median_s, first_ms = float(np.median(step_s[1:] or step_s)), round(step_s[0] * 1e3, 2)
    waited = round(sum(wait_s[1:]) / sum(step_s[1:]), 4) if len(step_s) > 8 else None
    result = {**vars(args), "template": "torch-xla-images", "framework": "torch", "epochs": epochs}
    result |= {"steps_per_epoch": steps_per_epoch, "devices": [one["device"] for one in executed]}
    result |= {"executed": executed, "replicas": replicas, "resumed_after_step": first_step}
    compiled = torch_xla.debug.metrics.metric_data("CompileTime")[0]
    result |= {"compilations": compiled, "input_wait_fraction": waited, "test_accuracy": accuracy}
    result |= {"first_step_ms": first_ms, "step_ms": {"p50": round(median_s * 1e3, 3)}}
    result |= {"examples_per_s": round(batch_size / median_s, 1), "model": str(out / "model.pt")}
    (out / "result.json").write_text(json.dumps(result, indent=2))
    # Last, and kept: the same command with more steps continues here.
    save_checkpoint(args.steps)
    print(f"test accuracy: {accuracy:.1%}; waited for images: {waited}; executed: {executed}")


def main() -> None:
    """Read the flags, and start one process for each device where that was asked for."""
    args = parser.parse_args()
    for name in [n for n, v in vars(args).items() if type(v) is int and v < (n != "seed")]:
        parser.error(f"--{name.replace('_', '-')} must be at least {int(name != 'seed')}")
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out: {error}") from None
    if open_devices(args).startswith("xla-launch"):
        torch_xla.launch(work, args=(args,))
    else:
        work(0, args)


if __name__ == "__main__":
    main()
