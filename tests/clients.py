"""A running emulator for clients that nobody here wrote, as `tpuctl emulator start` leaves it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tpuctl.emulator import process

SCENARIO = """{
  "time_scale": 2000, "buckets": {"photos": {"location": "us-central1"}},
  "zones": {"us-central1-a": {"types": ["v5litepod-1", "v5litepod-8", "v5litepod-16", "v4-8"]}}
}"""
VERSION = "v2-alpha-tpuv5-lite"


@dataclass(frozen=True)
class Target:
    """The emulator, and the environment in which clients find it."""

    http: str
    token: str
    env: Mapping[str, str]
    folder: Path

    @property
    def place(self) -> str:
        """The address without the secret."""
        return self.http.rpartition("/")[0]

    def run(self, *command: str, ok: bool = True) -> str:
        """Run a client; returns what it printed."""
        env = {**os.environ, **self.env, "HOME": str(self.folder)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert (done.returncode == 0) == ok, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr


@contextmanager
def emulator_for_clients(folder: Path, plan: str = SCENARIO) -> Iterator[Target]:
    """Start an emulator to which the environment points, and stop it."""
    scenario = folder / "scenario.json"
    scenario.write_text(plan)
    started = process.detach(folder / "emulator", scenario)
    try:
        config = {"CLOUDSDK_CONFIG": str(folder / "gcloud"), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
        token = Path(started.exports["TPUCTL_TPU_TOKEN_FILE"]).read_text()
        env = {**started.exports, **config}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            yield Target(started.http, token, env, folder)
    finally:
        process.stop(folder / "emulator")


def need(program: str) -> str:
    """Skip a test without a program."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def service(target: Target, name: str, version: str) -> Any:
    """A client made of a discovery document, whose root is the emulator."""
    discovery = pytest.importorskip("googleapiclient.discovery")
    from google.oauth2.credentials import Credentials

    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    document = json.loads((folder / f"{name}.{version}.json").read_text())
    document["rootUrl"] = f"{target.place}/"
    return discovery.build_from_document(document, credentials=Credentials(target.token))
