"""Train an image classifier with PyTorch/XLA on one TPU device or on all of them.

    python torch_xla_images.py --data shards --epochs 5  # made by tpuctl data presize
    python torch_xla_images.py --data fake --steps 20    # no data, any laptop
    python torch_xla_images.py --data fake --steps 20 --cpu-devices 2  # two devices
    python torch_xla_images.py --data fake --find-lr     # which learning rate?
    python torch_xla_images.py --data shards --predict   # with the model in --out

One-cycle learning rate, a learning-rate finder, a sampler that gives every
process its own part of an epoch, prediction of any number of pictures.
Several devices are a mesh in this one process (xla-spmd: the compiler
splits the batch and adds the gradients up), or a process each (the
xla-launch strategies). Without a TPU it runs on the CPU (PJRT_DEVICE=CPU).

Interrupt it: the same command resumes at the next step and ends with the
same weights. As a process for each device, and when killed, it goes on
from the last of its --save-every checkpoints. Needs torch and torch_xla of
the same release.

Measured: 240 pictures of scikit-learn's digits 0, 1 and 2, --batch-size 24
--epochs 5 on two vCPUs: 100 % of the 24 kept for the test.
"""

import argparse
import contextlib
import csv
import glob
import itertools
import json
import math
import mmap
import os
import signal
import statistics
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

try:
    import torch
    from torch import nn
    from torch.utils.data.distributed import DistributedSampler
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}. Install it: pip install torch==2.9.0 'torch_xla[tpu]==2.9.0'"
    ) from None

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default="fake", help="folder or gs:// address of shards, or 'fake'")
parser.add_argument("--steps", type=int, help="train this many steps instead of whole epochs")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="global: over all devices together")
parser.add_argument("--out", default="training", help="checkpoint.pt, model.pt and result.json")
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
parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
parser.add_argument("--image-size", type=int, default=64, help="only for --data fake")
parser.add_argument("--trace", type=int, help="record so many steps into OUT/trace")
parser.add_argument("--cpu-devices", type=int, help="split the CPU into virtual devices")

# `tpuctl launch` picks from these.
FRAMEWORKS = ("torch",)
# What a damaged shard or picture ends in.
UNREADABLE = (OSError, IndexError, KeyError, ValueError, struct.error)
CHANNELS = (32, 64, 128, 256)
FAKE_PICTURES = 320
MOMENTUM = 0.9


# ---- Devices -------------------------------------------------------------------------------------
def choose_strategy(args: argparse.Namespace) -> str:
    """Decide, and set what torch_xla reads once, when it is imported."""
    chips = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    if args.strategy == "xla-launch-pop-addresses":
        # On Kaggle it names fewer processes than there are chips.
        os.environ.pop("TPU_PROCESS_ADDRESSES", None)
    if not chips or args.cpu_devices or args.strategy == "cpu":
        os.environ["PJRT_DEVICE"] = "CPU"
    on_cpu = os.environ.get("PJRT_DEVICE") == "CPU"
    pretended = args.cpu_devices or int(os.environ.get("CPU_NUM_DEVICES", "1"))
    several = (pretended if on_cpu else len(chips)) > 1
    strategy = args.strategy
    if strategy == "auto":
        strategy = "xla-spmd" if several else "xla-single"
    if on_cpu:
        # Pretended devices exchange gradients inside of one program only: as a mesh. Processes and
        # threads run a program each, and torch_xla 2.9 on the CPU waits there without end.
        strategy = strategy if strategy == "xla-spmd" else "xla-single"
        os.environ["CPU_NUM_DEVICES"] = str(pretended if strategy == "xla-spmd" else 1)
    return strategy


def open_mesh():
    """All devices of a process as one mesh, of one axis; None where it drives one device."""
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    if not xr.is_spmd():
        return None
    count = xr.global_runtime_device_count()
    return xs.Mesh(np.arange(count), (count,), ("data",))


def share(tensor, mesh):
    """Give every device of the mesh its rows; without a mesh there is nothing to do."""
    import torch_xla.distributed.spmd as xs

    if mesh is not None:
        xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
    return tensor


# ---- Learning rate -------------------------------------------------------------------------------
def anneal(kind: str, start: float, end: float, share: float) -> float:
    """The way from one value to another; `share` of it is done."""
    if kind == "none":
        return end
    if kind == "linear":
        return start + (end - start) * share
    if kind == "exponential":
        return start * (end / start) ** share
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def one_cycle(kind: str, step: int, steps: int, highest: float) -> float:
    """Up for 30 % of the steps, then down to nearly nothing (Smith 2018, arXiv 1803.09820)."""
    if kind == "none":
        return highest
    up = max(1, round(0.3 * steps))
    if step < up:
        return anneal(kind, highest / 25, highest, step / up)
    return anneal(kind, highest, highest / 1e4, (step - up) / max(1, steps - up))


def steepest(rates: list, losses: list) -> float:
    """The rate at which the smoothed loss falls fastest, before it explodes."""
    smooth, mean = [], losses[0]
    for loss in losses:
        mean = 0.9 * mean + 0.1 * loss
        smooth.append(mean)
    lowest = int(np.argmin(smooth))
    slopes = np.gradient(smooth[: lowest + 1]) if lowest >= 1 else [0.0]
    return rates[int(np.argmin(slopes))]


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
    """(picture, label) of a tf.train.Example: features > feature > (name, list > value)."""
    found = {}
    for _, features in fields(record):
        for _, entry in fields(features):
            name, feature = (value for _, value in sorted(fields(entry)))
            ((_, values),) = fields(feature)
            found[name] = dict(fields(values)).get(1, b"")
    label = found[b"label"]
    return found[b"image"], label if isinstance(label, int) else varint(label, 0)[0]


def decode(record: bytes, side: int):
    """A record's picture, cut from the middle, and its label."""
    import io

    from PIL import Image

    encoded, label = parse_example(record)
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return np.asarray(picture.crop((left, top, left + side, top + side))), label


class Shards:
    """The pictures of a presized data set by number; the files are mapped, not read."""

    def __init__(self, folder: str, manifest: dict, out: Path):
        self.side, self.files, self.places = min(manifest["options"]["size"]), [], []
        for number, shard in enumerate(manifest["shards"]):
            path = Path(folder, shard["name"])
            if folder.startswith("gs://"):
                path = out / "shards" / shard["name"]
                self.copy(f"{folder.rstrip('/')}/{shard['name']}", path)
            with path.open("rb") as file:
                self.files.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            at = 0
            # TFRecord: a length, its checksum, the record, its checksum.
            while at < len(self.files[number]):
                (length,) = struct.unpack_from("<Q", self.files[number], at)
                self.places.append((number, at + 12, length))
                at += 16 + length

    def copy(self, source: str, path: Path) -> None:
        """Fetch a shard once; every process sees the whole file or none."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_bytes(read_bytes(source))
            os.replace(part, path)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int):
        number, at, length = self.places[row]
        return decode(self.files[number][at : at + length], self.side)


class Fake:
    """Four patterns with noise: nothing to fetch, and yet something to learn."""

    def __init__(self, side: int, seed: int):
        cells = -(-side // 8)
        patterns = np.random.default_rng(seed).integers(0, 256, (4, cells, cells, 3))
        self.patterns = patterns.repeat(8, axis=1).repeat(8, axis=2)[:, :side, :side]
        self.seed = seed

    def __len__(self) -> int:
        return FAKE_PICTURES

    def __getitem__(self, row: int):
        rng, label = np.random.default_rng((self.seed, row)), row % 4
        noise = rng.integers(-100, 101, self.patterns.shape[1:])
        return np.clip(self.patterns[label] + noise, 0, 255).astype(np.uint8), label


def split(rows: int, seed: int):
    """A tenth, chosen by the seed, is kept for the test."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[rows // 10 :], order[: rows // 10]


def read_batches(pictures, rows, each: int, seed: int, step: int, device: tuple):
    """Endless batches of one device from a step on: (uint8 pictures, labels, which to mirror).

    Everything follows from seed and step, so that a resumed run sees the same. Batches are full (a
    TPU compiles once for one shape); the next is being decoded while the device works.
    """
    rank, world = device
    sampler = DistributedSampler(rows, world, rank, seed=seed, drop_last=True)
    per_epoch = len(sampler) // each
    with ThreadPoolExecutor() as threads:
        ahead = None
        while True:
            epoch, index = divmod(step, per_epoch)
            if index == 0 or ahead is None:
                sampler.set_epoch(epoch)
                order = list(sampler)
            mine = rows[order[index * each : (index + 1) * each]]
            following = [threads.submit(pictures.__getitem__, int(row)) for row in mine]
            mirrored = np.random.default_rng((seed, step, rank)).random(each) < 0.5
            if ahead:
                yield stack(*ahead)
            ahead, step = (following, mirrored), step + 1


def stack(decoding: list, mirrored):
    """Wait for the pictures of a batch."""
    pictures, labels = zip(*(future.result() for future in decoding), strict=True)
    return np.stack(pictures), np.array(labels, np.int64), mirrored


# ---- Model and step ------------------------------------------------------------------------------
def make_model(classes: int, seed: int):
    """A ConvNet; channels are multiples of the MXU's lanes where it is deep."""
    torch.manual_seed(seed)
    # A stride of 4 first: most of the arithmetic of a ConvNet is in its full-size layers.
    layers = [nn.Conv2d(3, CHANNELS[0], 7, stride=4, padding=3, bias=False)]
    for narrow, wide in itertools.pairwise(CHANNELS):
        # Groups of a picture's own channels: nothing to exchange between devices.
        layers += [nn.GroupNorm(8, narrow), nn.ReLU()]
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False)]
    layers += [nn.GroupNorm(8, CHANNELS[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(CHANNELS[-1], classes))


def normalise(pictures, mirrored):
    """Bytes travel to the device, a quarter of what floats would be; it mirrors and scales them."""
    x = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)


def train_step(model, optimizer, batch, rate: float, world: int, dtype):
    """One step on this device; the gradients are the mean over all of them."""
    import torch_xla.core.xla_model as xm

    pictures, labels, mirrored = batch
    optimizer.zero_grad()
    narrow = dtype == torch.bfloat16
    with torch.autocast("xla", dtype=dtype) if narrow else contextlib.nullcontext():
        logits = model(normalise(pictures, mirrored))
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    if world > 1:
        # As one vector: one exchange instead of one for every layer.
        gradients = [parameter.grad for parameter in model.parameters()]
        whole = torch.cat([gradient.flatten() for gradient in gradients])
        whole = xm.all_reduce(xm.REDUCE_SUM, whole) / world
        parts = whole.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return loss.detach()


def predict(model, pictures, rows, each: int, device, part: tuple, mesh) -> np.ndarray:
    """The class of every row, in their order; any number of rows on any number of devices.

    Rows are filled up to whole batches, so that nothing is compiled for the last one.
    """
    import torch_xla
    import torch_xla.core.xla_model as xm

    rank, world = part
    whole = -(-len(rows) // (each * world)) * each * world
    padded = np.concatenate([rows, np.repeat(rows[:1], whole - len(rows))])
    found = []
    model.eval()
    still = torch.zeros(each, dtype=torch.bool, device=device)
    with torch.no_grad(), ThreadPoolExecutor() as threads:
        for batch in padded[rank::world].reshape(-1, each):
            decoded = list(threads.map(lambda row: pictures[int(row)][0], batch))
            x = share(torch.from_numpy(np.stack(decoded)).to(device), mesh)
            found.append(model(normalise(x, still)).argmax(1))
            torch_xla.sync()
    model.train()
    own = torch.cat(found)
    every = (xm.all_gather(own) if world > 1 else own).cpu().numpy()
    # Device after device to row after row.
    return every.reshape(world, -1).T.flatten()[: len(rows)]


# ---- Proof: which devices executed the steps -----------------------------------------------------
def make_counter(mesh, device):
    """Steps and examples, a row for each device of this process, on that device."""
    count = int(mesh.size()) if mesh is not None else 1
    return share(torch.zeros(count, 2, dtype=torch.int64, device=device), mesh)


def count_step(counter, labels):
    """Every device adds what it was given itself."""
    examples = torch.ones_like(labels).reshape(len(counter), -1).sum(1)
    counter += torch.stack([torch.ones_like(examples), examples], dim=1)


def executed_by(counter, mesh, world: int, kind: str) -> list[dict]:
    """What every device says it did, read from the device itself."""
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.spmd as xs

    if mesh is not None:
        shards = xs.wrap_if_sharded(counter).local_shards
        counts = [(shard.shard_device, *shard.data.flatten().tolist()) for shard in shards]
    else:
        every = (xm.all_gather(counter) if world > 1 else counter).cpu().tolist()
        counts = [(f"{kind}:{number}", *count) for number, count in enumerate(every)]
    return [{"device": name, "steps": steps, "examples": rows} for name, steps, rows in counts]


# ---- Checkpoints ---------------------------------------------------------------------------------
def save(path: Path, state: dict) -> None:
    """Leave the whole file or none."""
    import torch_xla.core.xla_model as xm

    part = path.with_name(f"{path.name}.part")
    torch.save(xm._maybe_convert_to_cpu(state), part)
    os.replace(part, path)


def restore(checkpoint: Path, settings: dict) -> dict:
    """Return what was saved last; refuse that of a run with other mathematics."""
    saved = torch.load(checkpoint, weights_only=True)
    if saved["settings"] != settings:
        raise SystemExit(f"--out has {saved['settings']}, not {settings}: --overwrite?")
    return saved


def write_json(path: Path, content: dict) -> None:
    """Leave the whole file or none."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=2))
    os.replace(part, path)


# ---- One device, top to bottom -------------------------------------------------------------------
def work(index: int, args: argparse.Namespace) -> None:
    """What every device does: train, look for a learning rate, or predict."""
    import torch_xla
    import torch_xla.runtime as xr

    device, mesh = torch_xla.device(), open_mesh()
    rank, world = part = xr.global_ordinal(), xr.world_size()
    replicas = int(mesh.size()) if mesh is not None else world
    say = print if rank == 0 else lambda *words, **how: None
    out = Path(args.out)
    fake = args.data == "fake"
    manifest = None if fake else read_manifest(args.data)
    pictures = Fake(args.image_size, args.seed) if fake else Shards(args.data, manifest, out)
    names = list("0123") if fake else list(manifest["classes"])
    if len(names) < 2:
        raise SystemExit(f"--data: {args.data} has no classes; presize it with --labels.")
    if args.batch_size % replicas:
        near = max(1, round(args.batch_size / replicas)) * replicas
        raise SystemExit(
            f"--batch-size {args.batch_size} does not divide over {replicas} devices; "
            f"--batch-size {near} would"
        )
    each = args.batch_size // world
    rows, test = split(len(pictures), args.seed)
    if args.batch_size > len(rows):
        raise SystemExit(
            f"--batch-size {args.batch_size} is more than the {len(rows)} examples there are"
        )
    on_tpu = xr.device_type() == "TPU"
    narrow = args.dtype == "bfloat16" or (args.dtype == "auto" and on_tpu)
    dtype = torch.bfloat16 if narrow else torch.float32
    steps_per_epoch = len(rows) // world // each
    total_steps = args.steps or (100 if args.find_lr else args.epochs * steps_per_epoch)

    say(f"devices: {replicas} of {xr.device_type()}; arithmetic: {str(dtype).partition('.')[2]}")
    say(f"data: {len(rows)} pictures to train on, {len(test)} to test; {len(names)} classes")
    say(f"batch: {args.batch_size} global, {args.batch_size // replicas} per device")
    say(f"learning rate: one cycle ({args.anneal}) up to {args.learning_rate}, as given")
    say(f"steps: {total_steps}, {steps_per_epoch} in an epoch", flush=True)

    # Every device makes the same weights: nothing needs to be sent at the start.
    model = make_model(len(names), args.seed).to(device)
    if args.predict:
        write_predictions(args, model, pictures, names, each, device, part, mesh)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=MOMENTUM)
    # Other devices continue a run; where one of these differs, it is another run. The one cycle
    # depends on its length: with --anneal, another number of steps is another run too.
    same = ("batch_size", "learning_rate", "anneal", "seed")
    settings = {name: getattr(args, name) for name in same} | {"dtype": str(dtype)}
    settings["data"] = zlib.crc32(
        json.dumps(args.image_size if fake else manifest["shards"]).encode()
    )
    settings["steps"] = "any" if args.anneal == "none" else total_steps
    checkpoint, first_step = out / "checkpoint.pt", 0
    if checkpoint.exists() and not args.overwrite and not args.find_lr:
        saved = restore(checkpoint, settings)
        first_step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        say(f"resuming after step {first_step}", flush=True)
    if first_step >= total_steps:
        say(f"{first_step} steps are done already: ask for more, or --overwrite")
        return
    torch_xla.sync()

    stopped = []
    if world == 1:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: stopped.append(number))
    batches = read_batches(pictures, rows, each, args.seed, first_step, part)
    counter = make_counter(mesh, device)
    step_s, wait_s, rates, losses = [], [], [], []
    spoken = time.perf_counter()
    for step in range(first_step, total_steps):
        if args.trace and step == first_step + 3:
            torch_xla.debug.profiler.start_trace(str(out / "trace"))
        begun = time.perf_counter()
        try:
            local = next(batches)
        except UNREADABLE as error:
            raise SystemExit(
                f"--data: {args.data} is damaged ({error}). See where: tpuctl data verify --deep"
            ) from None
        wait_s.append(time.perf_counter() - begun)
        batch = [share(torch.from_numpy(array).to(device), mesh) for array in local]
        if args.find_lr:
            rates.append(anneal("exponential", 1e-6, 10.0, step / total_steps))
        else:
            rates.append(one_cycle(args.anneal, step, total_steps, args.learning_rate))
        loss = train_step(model, optimizer, batch, rates[-1], world, dtype)
        count_step(counter, batch[1])
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
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(checkpoint, {**state, "step": step + 1, "settings": settings})
        if time.perf_counter() - spoken > 1 or step + 1 == total_steps:
            spoken = time.perf_counter()
            speed = args.batch_size / step_s[-1]
            say(f"step {step + 1}: loss {losses[-1]:.4f}, {speed:,.0f} examples/s", flush=True)
        if leaving:
            say(f"stopped after step {step + 1}; the same command resumes there", flush=True)
            sys.exit(128 + stopped[0])
    if args.find_lr:
        found = {"rates": rates, "losses": losses, "suggested": steepest(rates, losses)}
        if rank == 0:
            write_json(out / "lr.json", found)
        say(f"learning rate: {found['suggested']:.3g} falls fastest, at a batch of {each * world}")
        return

    executed = executed_by(counter, mesh, world, xr.device_type())
    predicted = predict(model, pictures, test, each, device, part, mesh)
    if rank:
        return
    accuracy = float((predicted == [pictures[int(row)][1] for row in test]).mean())
    save(out / "model.pt", model.state_dict())
    median_s, first_ms = statistics.median(step_s[1:] or step_s), round(step_s[0] * 1e3, 2)
    waited = sum(wait_s[1:]) / sum(step_s[1:]) if len(step_s) > 8 else None
    compiled = torch_xla.debug.metrics.metric_data("CompileTime")
    result = {**vars(args), "template": "torch-xla-images", "framework": "torch"}
    result |= {"devices": [entry["device"] for entry in executed], "replicas": replicas}
    result |= {"steps": total_steps, "resumed_after_step": first_step, "executed": executed}
    result |= {"steps_per_epoch": steps_per_epoch, "compilations": compiled and compiled[0]}
    result |= {"first_step_ms": first_ms, "step_ms": {"p50": round(median_s * 1e3, 3)}}
    result |= {"examples_per_s": round(args.batch_size / median_s, 1)}
    result |= {"input_wait_fraction": waited and round(waited, 4)}
    result |= {"test_accuracy": round(accuracy, 4), "model": str(out / "model.pt")}
    write_json(out / "result.json", result)
    # Last, and kept: the same command with more steps continues here.
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save(checkpoint, {**state, "step": total_steps, "settings": settings})
    print(f"step: {median_s * 1e3:.1f} ms (first, with compilation: {first_ms:.0f} ms)")
    print(f"speed: {result['examples_per_s']} examples/s")
    if waited is not None:
        print(f"waited for pictures: {waited:.0%} of the time")
    for entry in executed:
        print(f"{entry['device']} executed {entry['steps']} steps, {entry['examples']} examples")
    print(f"test accuracy: {accuracy:.1%}")


def write_predictions(args, model, pictures, names, each: int, device, part: tuple, mesh) -> None:
    """Write OUT/predictions.csv: the number of each picture of --data, and its class."""
    path = Path(args.out) / "model.pt"
    if not path.is_file():
        raise SystemExit(f"--predict: there is no {path}. Train first, with the same --out.")
    model.load_state_dict(torch.load(path, weights_only=True))
    found = predict(model, pictures, np.arange(len(pictures)), each, device, part, mesh)
    if part[0] == 0:
        place = Path(args.out) / "predictions.csv"
        with place.open("w", newline="") as file:
            rows = ([row, names[label]] for row, label in enumerate(found))
            csv.writer(file).writerows([["picture", "class"], *rows])
        print(f"{len(found)} predictions in {place}")


# ---- Start ---------------------------------------------------------------------------------------
def main() -> None:
    """Read the flags, and start one process for each device where that was asked for."""
    args = parser.parse_args()
    for name in [n for n, v in vars(args).items() if type(v) is int and v < (n != "seed")]:
        parser.error(f"--{name.replace('_', '-')} must be at least {int(name != 'seed')}")
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out: {error}") from None
    strategy = choose_strategy(args)
    # With a mesh the compiler of torch_xla 2.9 warns of its own age, once for every program.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    try:
        import torch_xla
        import torch_xla.runtime as xr
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error}. Install it: pip install torch==2.9.0 'torch_xla[tpu]==2.9.0'"
        ) from None
    if strategy == "xla-spmd":
        xr.use_spmd()
    if strategy.startswith("xla-launch"):
        torch_xla.launch(work, args=(args,))
    else:
        work(0, args)


if __name__ == "__main__":
    main()
