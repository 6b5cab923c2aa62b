"""Every option of every command: what cannot be read, or has no effect, is wrong usage."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Tpuctl
from tests.pictures import fill
from tpuctl.cli.app import _load
from tpuctl.cli.contents import CONTENTS


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words."""
    for entry in CONTENTS:
        loaded = _load(entry)
        below = getattr(loaded, "commands", {})
        if not below or loaded.invoke_without_command:
            yield entry.name, loaded
        yield from ((f"{entry.name} {name}", command) for name, command in below.items())


NONSENSE = "?! nonsense"
# What comes before the option, so that nothing but the option is wrong.
WORDS: dict[str, tuple[str, ...]] = {
    "bench": (),
    "config": (),
    "cp": ("train.py", "t1:x"),
    "create": ("t1", "--type", "v5e-8", "--zone", "us-central1-a", "--dry-run"),
    "data cache": ("train.py:make", "out"),
    "data presize": ("photos", "out"),
    "delete": ("t1", "--dry-run"),
    "fit": ("mnist-cnn", "--type", "v5e-8"),
    "free": ("t1", "--dry-run"),
    "launch": ("train.py", "--dry-run"),
    "profile run": ("photos",),
    "profile show": ("old.tpuprof",),
    "profile trace": ("logs",),
    "profile watch": ("train.py",),
    "run": ("t1", "--", "true"),
    "watch": ("t1", "--dry-run", "--", "true"),
}
# Free text, paths and names that only their owner can judge: whatever they hold can be read.
FREE = {
    "--bucket", "--chdir", "--code", "--csv", "--html", "--images", "--key", "--network", "--out",
    "--plot", "--png", "--project", "--python", "--record", "--replay", "--runtime-version",
    "--scenario", "--service-account", "--sheet", "--startup-script", "--subnetwork", "--tag",
    "--template", "--model",
}  # fmt: skip
TIMES = {
    "--bad-host-after", "--grace", "--hang-after", "--interval", "--seconds", "--timeout", "--ttl",
    "--device-step-ms", "--max-usd",
}  # fmt: skip
SIZES = {"--limit", "--log-limit", "--shard-size"}
COMMANDS = dict(commands())


def options(wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Every option with a value, of every command."""
    return [
        (name, param.opts[0])
        for name, command in COMMANDS.items()
        for param in command.params
        if param.param_type_name == "option" and not param.is_flag and wanted(param.opts[0])
    ]


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the commands name; a service that would be noticed is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "127.0.0.1:1")
    fill(tmp_path / "photos", 4, classes=2)
    (tmp_path / "train.py").write_text("def make(): return [1]")
    (tmp_path / "logs").mkdir()


def usage_of(name: str) -> str:
    """The words that a command takes."""
    params = COMMANDS[name].params
    return " ".join(str(p.metavar) for p in params if p.param_type_name == "argument")


def refused(tpuctl: Tpuctl, name: str, flag: str, value: str) -> str:
    """Run a command with one wrong option and return the message of its usage error."""
    words = list(WORDS.get(name, ("t1",) if "NAME" in usage_of(name) else ()))
    aliases = {"--accelerator-type": "--type"}
    if (same := aliases.get(flag, flag)) in words:
        del words[words.index(same) : words.index(same) + 2]
    result = tpuctl(*name.split(), flag, value, *words)
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr)
    return result.stderr


@pytest.mark.parametrize(("name", "flag"), options(lambda flag: flag not in FREE))
def test_what_cannot_be_read_is_wrong_usage(
    tpuctl: Tpuctl, at_home: None, name: str, flag: str
) -> None:
    assert "Error: " in refused(tpuctl, name, flag, NONSENSE)


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-1", "-1s", "999999999d", "1e400", "banana", "5x"]
)
@pytest.mark.parametrize(("name", "flag"), options(TIMES.__contains__))
def test_an_absurd_limit_is_wrong_usage(
    tpuctl: Tpuctl, at_home: None, name: str, flag: str, value: str
) -> None:
    assert flag in refused(tpuctl, name, flag, value)


@pytest.mark.parametrize("value", ["nan", "-1", "9" * 400, "99999999999999TB", "banana"])
@pytest.mark.parametrize(("name", "flag"), options(SIZES.__contains__))
def test_an_absurd_size_is_wrong_usage(
    tpuctl: Tpuctl, at_home: None, name: str, flag: str, value: str
) -> None:
    assert flag in refused(tpuctl, name, flag, value)


@pytest.mark.parametrize("value", ["1h30m", "366d", "250ms"])
def test_a_sensible_limit_is_read(tpuctl: Tpuctl, at_home: None, value: str) -> None:
    """The twin: it fails for want of a service, not for its usage."""
    assert tpuctl("stop", "t1", "--grace", value).exit_code == 3
    assert tpuctl("run", "t1", "--detach", "--log-limit", "2GB", "--", "true").exit_code == 3


WITHOUT_EFFECT = [
    "profile run photos --model mnist-cnn",
    "profile run --batch-size 8 -- python train.py",
    "profile run --image-size 8 -- python train.py",
    "profile run --model mnist-cnn -- python train.py",
    "profile show old.tpuprof --csv --json",
    "data presize photos out --beam runner=DirectRunner",
    "data presize photos out --quality 80 --encode png",
    "data cache gs://b/shards --variants 2",
    "data cache gs://b/shards --elements 2",
    "data cache gs://b/shards --seed 2",
    "data cache gs://b/shards --shard-size 1GB",
    "data cache gs://b/shards --dry-run",
    "data cache train.py:make out --limit 1GB",
    "data serve --python python3.12",
    "data serve --key id",
    "data serve --zone us-central1-a",
    "logs t1 --list --follow",
    "logs t1 --list --tail 0",
    "logs t1 --list --job x",
    "launch train.py --key id",
    "launch train.py --jump me@host",
    "launch train.py --zone us-central1-a",
    "launch train.py --project p",
    "launch train.py --internal-ip",
    "launch train.py --no-check",
    "launch train.py --check",
    "launch train.py --job x",
    "run t1 --log-limit 0 -- true",
    "run t1 --no-check -- true",
    "run --host me@10.0.0.1 --zone us-central1-a -- true",
    "run --host me@10.0.0.1 --project p -- true",
    "stop --host me@10.0.0.1 --internal-ip",
    "top local --key id",
    "free local --zone us-central1-a",
    "top --once --interval 2s",
    "top --json --interval 2s",
    "list --all-zones --zone us-central1-a",
    "bench --epochs 2 compare a b",
    "doctor --yes",
]


@pytest.mark.parametrize("line", WITHOUT_EFFECT)
def test_an_option_without_effect_is_refused(tpuctl: Tpuctl, at_home: None, line: str) -> None:
    result = tpuctl(*line.split())
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr)


def test_a_host_that_no_name_server_knows_is_wrong_usage(tpuctl: Tpuctl, tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    try:
        socket.getaddrinfo("nonsense", 22)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            pytest.skip("no name server answers")
    else:
        pytest.skip("this network has a machine called nonsense")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    result = tpuctl("run", "--host", "nonsense", "--key", str(key), "--", "true")
    assert result.exit_code == 2
    assert "unknown host name" in result.stderr


PIPES = (
    "doctor --replay {}.json",
    "bench compare {}.json {}.json",
    "launch {}.py --dry-run",
    "profile show {}.tpuprof",
    "profile diff {}.tpuprof {}.tpuprof",
    "profile trace {}.xplane.pb",
    "profile run {}.py:make",
    "lint {}.py",
    "fit {}.mlir --type v5e-8",
    "data presize photos out --labels {}.csv",
    "data show {}",
    "data cache {}.py:make out",
    "create t1 --type v5e-8 --zone us-central1-a --startup-script {}.sh --dry-run",
    "emulator start --scenario {}.json",
)


@pytest.mark.parametrize("line", PIPES)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(
    tpuctl: Tpuctl, at_home: None, tmp_path: Path, line: str
) -> None:
    words = line.format(*[tmp_path / "pipe"] * 2).split()
    for path in {word.partition(":")[0] for word in words if "pipe" in word}:
        os.mkfifo(path)
    assert tpuctl(*words).exit_code in (1, 2)


def test_a_state_folder_below_a_file_is_not_taken_for_an_unreachable_worker(
    tpuctl: Tpuctl, at_home: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "train.py" / "state"))
    result = tpuctl("run", "--host", "me@127.0.0.1:1", "--", "true")
    assert result.exit_code == 1
    assert "Not a directory" in result.stderr
