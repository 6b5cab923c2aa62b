"""Code that starts each strategy, to paste into a notebook cell."""

from collections.abc import Sequence

from tpuctl.runtime.versions import parse, tables

PJRT_VARIABLES = """\
import importlib.util
import os
from pathlib import Path

library = Path("/lib/libtpu.so")
if not library.exists():
    library = Path(importlib.util.find_spec("libtpu").origin).with_name("libtpu.so")
os.environ["NEXT_PLUGGABLE_DEVICE_USE_C_API"] = "true"
os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] = str(library)

"""

PATHWAYS = """\
import pathwaysutils

pathwaysutils.initialize()
"""

_INSTALL = """\
import subprocess
import sys

subprocess.check_call([sys.executable, "-m", "pip", "install", "-U", "{package}"])
"""
# The package for each accelerator; JAX's are from docs.jax.dev (installation).
_PACKAGES = {
    "jax": {"tpu": "jax[tpu]", "gpu": "jax[cuda12]"},
    "tensorflow": {"tpu": "tensorflow-tpu", "gpu": "tensorflow[and-cuda]"},
    "torch": {"tpu": "torch~={release}' 'torch_xla[tpu]~={release}"},
}
_XLA_ON_CPU = "torch~={release}' 'torch_xla~={release}"

_TF_TPU = """\
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu={tpu})
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
print(strategy.num_replicas_in_sync, "replicas")
"""

_TF = """\
import tensorflow as tf

strategy = tf.distribute.{strategy}()
print(strategy.num_replicas_in_sync, "replicas")
"""

_TF_DEFAULT = """\
import tensorflow as tf

strategy = tf.distribute.get_strategy()
print(strategy.num_replicas_in_sync, "replica on", tf.config.list_physical_devices()[-1].name)
"""

_TF_NONE = """\
# This TensorFlow cannot see the TPU: it runs on the CPU. Use JAX, or Keras 3 on JAX:
import os

os.environ["KERAS_BACKEND"] = "jax"  # before the first import of keras
import keras

print(keras.distribution.list_devices())
"""

_JAX_MESH = """\
import jax
from jax.sharding import NamedSharding, PartitionSpec

{first}mesh = jax.make_mesh((jax.device_count(),), ("data",))
batch_sharding = NamedSharding(mesh, PartitionSpec("data"))
replicated = NamedSharding(mesh, PartitionSpec())
print(jax.device_count(), "devices, batches are split over all of them")
"""

_JAX_SINGLE = """\
import jax

print(jax.devices())  # one device: jax.jit is all it takes
"""

_XLA_LAUNCH = """\
{first}import torch_xla


def train(index):
    device = torch_xla.device()
    print(index, device)


if __name__ == "__main__":
    torch_xla.launch(train)
"""

_XLA_SINGLE = """\
import torch
import torch_xla

device = torch_xla.device()
print(torch.ones(2, device=device).sum().item(), "on", device)
"""

_XLA_SPMD = """\
import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

xr.use_spmd()
count = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(count), (count,), ("data",))
batch = torch.ones(8 * count, 4, device=torch_xla.device())
xs.mark_sharding(batch, mesh, ("data", None))
print(count, "devices, batches marked like this one are split over all of them")
"""

_POP = """\
import os

os.environ.pop("TPU_PROCESS_ADDRESSES", None)  # before torch_xla is imported

"""

_TORCH_ONE = """\
import torch

device = torch.device("{device}")
print(torch.ones(2, device=device).sum().item(), "on", device)
"""

_TPU_TORCHRUN = """\
# Save as train.py. TorchTPU needs a few variables before torchrun starts the processes:
#   set -a; eval "$(python -m torch.tpu.distributed)"; set +a
#   torchrun {nodes} train.py
import torch

torch.distributed.init_process_group("tpu_dist")
device = torch.device("tpu")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
print(torch.distributed.get_rank(), "of", torch.distributed.get_world_size(), "on", device)
torch.distributed.destroy_process_group()
"""

_TORCH_DDP = """\
# Save as train.py, then: torchrun --standalone --nproc-per-node=gpu train.py
import os

import torch

torch.distributed.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
print(torch.distributed.get_rank(), "of", torch.distributed.get_world_size(), "on", device)
torch.distributed.destroy_process_group()
"""

_KERAS = """\
import os

os.environ["KERAS_BACKEND"] = "{backend}"  # before the first import of keras
import keras

{first}print(keras.backend.backend(), keras.distribution.list_devices())
"""

DATA_PARALLEL = "keras.distribution.set_distribution(keras.distribution.DataParallel())\n"
_ALL_HOSTS = "# The same program must start on every host.\n"

_SNIPPETS: dict[str, dict[str, str]] = {
    "tensorflow": {
        "tpu-local": _TF_TPU.format(tpu='"local"'),
        "tpu-grpc": _TF_TPU,
        "tpu-name": _TF_TPU,
        "mirrored": _TF.format(strategy="MirroredStrategy"),
        "multiworker-mirrored": _TF.format(strategy="MultiWorkerMirroredStrategy"),
        "default": _TF_DEFAULT,
        "none-on-tpu": _TF_NONE,
    },
    "jax": {
        "single": _JAX_SINGLE,
        "mesh": _JAX_MESH.format(first=""),
        "distributed+mesh": _ALL_HOSTS
        + _JAX_MESH.format(first="jax.distributed.initialize()  # before anything else\n"),
        "cpu": _JAX_SINGLE,
    },
    "torch": {
        "xla-single": _XLA_SINGLE,
        "xla-spmd": _XLA_SPMD,
        "xla-launch": _XLA_LAUNCH.format(first=""),
        "xla-launch-pop-addresses": _XLA_LAUNCH.format(first=_POP),
        "xla-launch-all-hosts": _ALL_HOSTS + _XLA_LAUNCH.format(first=""),
        "tpu-single": _TORCH_ONE.format(device="tpu"),
        "tpu-torchrun": _TPU_TORCHRUN.format(nodes="--nproc-per-node=$WORLD_SIZE"),
        "tpu-torchrun-all-hosts": _ALL_HOSTS
        + _TPU_TORCHRUN.format(
            nodes="--nnodes=$NNODES --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR "
            "--nproc-per-node=$((WORLD_SIZE / NNODES))"
        ),
        "cuda-single": _TORCH_ONE.format(device="cuda"),
        "cuda-ddp": _TORCH_DDP,
        "cpu": _TORCH_ONE.format(device="cpu"),
    },
    "keras": {
        "jax-single": _KERAS.format(backend="jax", first=""),
        "jax-data-parallel": _KERAS.format(backend="jax", first=DATA_PARALLEL),
        "jax-distributed": _ALL_HOSTS
        + _KERAS.format(backend="jax", first="keras.distribution.initialize()\n" + DATA_PARALLEL),
        "tensorflow": _KERAS.format(backend="tensorflow", first=""),
        "torch": _KERAS.format(backend="torch", first=""),
    },
}


def install_jax(accelerator: str) -> str:
    """Return code that installs JAX for the accelerator."""
    return _INSTALL.format(package=_PACKAGES["jax"].get(accelerator, "jax"))


def install_line(
    accelerator: str, frameworks: Sequence[str] = ("jax",), *, with_xla: bool = False
) -> str:
    """Return the pip command that installs one of the frameworks for the accelerator.

    On a TPU, JAX is preferred: TensorFlow supports few generations. `with_xla` adds PyTorch/XLA to
    PyTorch on other machines too. torch_xla loads only with the torch of its own release. pip would
    install a torch of 5 GB for Nvidia's GPUs, but uv can choose the small CPU build.
    """
    name = "jax" if accelerator == "tpu" and "jax" in frameworks else frameworks[0]
    package = _PACKAGES[name].get(accelerator, _XLA_ON_CPU if with_xla else name)
    for_cpus = name == "torch" and (accelerator == "none" or package == _XLA_ON_CPU)
    tool = "uv pip install -U --torch-backend=cpu" if for_cpus else "pip install -U"
    release = max(tables()["torch_xla_libtpu"], key=parse)
    return f"{tool} '{package.format(release=release)}'"


def known(framework: str) -> tuple[str, ...]:
    """List the strategies of a framework."""
    return tuple(_SNIPPETS[framework])


def snippet(framework: str, strategy: str, remote: str | None) -> str:
    """Return the code that starts a strategy; empty if the framework is not installed."""
    code = _SNIPPETS[framework].get(strategy, "")
    if "{tpu}" not in code:
        return code
    name = remote or ""
    if strategy == "tpu-grpc" and not name.startswith(("grpc://", "{")):
        name = f"grpc://{name}"
    return code.format(tpu=repr(name) if name and not name.startswith("{") else "None")
