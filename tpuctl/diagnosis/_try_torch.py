"""The trials, done with PyTorch, through torch_xla where it is. Run in a child process."""

import importlib.util
import os
import sys
from typing import Any

os.environ.pop("TPU_PROCESS_ADDRESSES", None)

import torch

from tpuctl.diagnosis.numerics import answer, matrices


def devices() -> dict[str, Any]:
    """Multiply once on each device."""
    found = _devices()
    sums = []
    for device in found:
        ones = torch.ones(128, 128, device=device)
        sums.append(float((ones @ ones).sum()))
    return {"devices": [str(device) for device in found], "sums": sums}


def numerics() -> dict[str, Any]:
    """The matrix test in default and in highest precision."""
    device = _devices()[0]
    results = {"default": _matrices(device)}
    _highest(str(device))
    results["highest"] = _matrices(device)
    return {"device": str(device), "results": results}


def _matrices(device: Any) -> dict[str, Any]:
    pv, q = (torch.tensor(rows, dtype=torch.float32, device=device) for rows in matrices())
    inverse = torch.linalg.inv(pv)
    qep = inverse.T @ q @ inverse
    return {"QEP": qep.cpu().tolist(), "Q": (pv.T @ qep @ pv).cpu().tolist()}


def _highest(device: str) -> None:
    torch.set_float32_matmul_precision("highest")
    if device.startswith("xla"):
        import torch_xla

        torch_xla.backends.set_mat_mul_precision("highest")


def _devices() -> list[Any]:
    if importlib.util.find_spec("torch_xla"):
        import torch_xla.core.xla_model as xm

        return [torch.device(name) for name in xm.get_xla_supported_devices()]
    count = torch.cuda.device_count()
    return [torch.device("cuda", n) for n in range(count)] or [torch.device("cpu")]


if __name__ == "__main__":
    answer({"devices": devices, "numerics": numerics}[sys.argv[1]]())
