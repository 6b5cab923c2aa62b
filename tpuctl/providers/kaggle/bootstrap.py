"""The first program of a Kaggle session: check for a TPU, unpack, run the job, save the result.

This file is the source of the kernel, followed by a call of `main`, so it needs Python 3.8 alone.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from typing import NoReturn

NO_TPU, NO_INPUT = 86, 85
_BLOCK = 1 << 20
_NET_TIMEOUT_S = 10


def main(job: dict[str, object], packed: str) -> None:
    """Run a job; `packed` is its archive in base64, empty where that is a mounted data set."""
    began = time.monotonic()
    root = os.environ.get("TPUCTL_KAGGLE_ROOT", "/kaggle")
    working, inputs = os.path.join(root, "working"), os.path.join(root, "input")
    scale = float(os.environ.get("TPUCTL_EMULATED_TIME_SCALE", "1"))
    devices = os.environ.get("TPUCTL_EMULATED_DEVICES", "/dev")
    chips = glob.glob(devices + "/accel[0-9]*") + glob.glob(devices + "/vfio/[0-9]*")
    if not chips:
        _say("this session has no TPU; it ends now, so that it uses no hours")
        _end(working, job, NO_TPU, "no TPU")
    _say(f"{len(chips)} TPU chips")
    online = _is_online(str(job["check"]))
    if not online:
        _say("internet is off in this session: pip install and downloads will fail")
    archive = base64.b85decode(packed) if packed else _mounted(inputs, job, scale)
    if archive is None:
        _say("the data set with the project is not mounted")
        _end(working, job, NO_INPUT, "no input")
    os.makedirs(working, exist_ok=True)
    unpacked = _unpack(archive, working)
    if job.get("resume"):
        last = _find(inputs, str(job["resume"]))
        if last is None:
            _say("the output of the last run is not mounted")
            _end(working, job, NO_INPUT, "no input")
        _copy_output(last, working, unpacked)
    limit_s = float(str(job["limit_s"])) / scale
    code, why = _run(working, max(1.0, limit_s - (time.monotonic() - began)))
    _remove(working, unpacked)
    _end(working, job, code, why, online)


def _run(working: str, limit_s: float) -> tuple[int, str]:
    """Run the job; stop it before the session is ended, so that its output is kept."""
    start = os.path.join(working, ".tpuctl", "tpuctl", "start_python.py")
    job = os.path.join(working, ".tpuctl", "job.json")
    command = [sys.executable, "-u", start, "tpuctl.training.hosted_job", job]
    # Kaggle sets these to what libtpu, JAX or torch_xla reject, or wait for in vain.
    bad = {"TPU_WORKER_HOSTNAMES": " ", "TPU_WORKER_ADDRS": " ", "TPU_PROCESS_ADDRESSES": "local"}
    env = {name: text for name, text in os.environ.items() if bad.get(name, "\0") not in text}
    child = subprocess.Popen(command, cwd=working, env=env, start_new_session=True)  # noqa: S603 (ours)

    def pass_on(*_: object) -> None:
        # The job may have ended, and its output is being written.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    why = ""
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        why = "time limit"
        _say("the time limit is near: stopping the job")
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    code = child.returncode
    return (code if code >= 0 else 128 - code), why


def _end(
    working: str, job: dict[str, object], code: int, why: str, online: bool = True
) -> NoReturn:
    """Write the exit code and the digest of every file, and leave.

    A failed job ends the kernel well, because the output of a kernel that fails may be dropped.
    """
    files = {}
    for folder, _, names in os.walk(working):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                files[os.path.relpath(path, working)] = [os.path.getsize(path), _digest(path)]
    os.makedirs(os.path.join(working, "tpuctl"), exist_ok=True)
    about = {"id": job["id"], "exit_code": code, "why": why, "online": online, "files": files}
    with open(os.path.join(working, "tpuctl", "run.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    _say(f"exit code {code}")
    sys.exit(code if code in (NO_TPU, NO_INPUT) else 0)


def _mounted(inputs: str, job: dict[str, object], scale: float) -> bytes | None:
    """Read the archive from the data set; a mount may come late."""
    for _ in range(30):
        for path in glob.glob(inputs + "/**/" + str(job["archive"]), recursive=True):
            with open(path, "rb") as file:
                data = file.read()
            if hashlib.sha256(data).hexdigest() == job["sha256"]:
                return data
        time.sleep(1 / scale)
    return None


def _find(inputs: str, name: str) -> str | None:
    """Find the folder where the output of a kernel is mounted; the place has changed before."""
    found = (p for depth in ("/", "/*/", "/*/*/") for p in glob.glob(inputs + depth + name))
    return next((path for path in found if os.path.isdir(path)), None)


def _unpack(archive: bytes, working: str) -> dict[str, tuple[int, int]]:
    """Unpack the project; returns size and time of each file, to tell it from output later."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(working)  # noqa: S202 (our own)
        # The other way round, the archive would be decompressed twice.
        names = tar.getnames()
    return {name: state for name in names if (state := _state(os.path.join(working, name)))}


def _copy_output(last: str, working: str, unpacked: dict[str, tuple[int, int]]) -> None:
    for folder, _, names in os.walk(last):
        for name in names:
            place = os.path.relpath(os.path.join(folder, name), last)
            if place not in unpacked and not place.startswith("tpuctl" + os.sep):
                os.makedirs(os.path.dirname(os.path.join(working, place)), exist_ok=True)
                shutil.copyfile(os.path.join(last, place), os.path.join(working, place))


def _remove(working: str, unpacked: dict[str, tuple[int, int]]) -> None:
    """Remove what was unpacked and is unchanged: the rest is the output."""
    shutil.rmtree(os.path.join(working, ".tpuctl"), ignore_errors=True)
    for name, before in unpacked.items():
        path = os.path.join(working, name)
        if _state(path) == before:
            os.remove(path)
    for folder, _, _ in os.walk(working, topdown=False):
        if folder != working and not os.listdir(folder):
            os.rmdir(folder)


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return None if os.path.isdir(path) else (found.st_size, found.st_mtime_ns)


def _digest(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            total.update(block)
    return total.hexdigest()


def _is_online(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=_NET_TIMEOUT_S).close()  # noqa: S310 (fixed)
    except OSError as error:
        return hasattr(error, "code")
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"tpuctl: {text}\n")
    sys.stdout.flush()
