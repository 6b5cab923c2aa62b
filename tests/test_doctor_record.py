"""Recording a machine: the same diagnosis again, and no secret in the file."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import chips, environment, environments
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.runtime.live import LiveMachine
from tpuctl.runtime.machine import Machine
from tpuctl.runtime.record import Recorder, to_json
from tpuctl.runtime.replay import RecordedMachine, open_recorded


def recorded(machine: Machine) -> dict[str, Any]:
    recorder = Recorder(machine)
    diagnose(recorder.machine)
    document: dict[str, Any] = json.loads(to_json(recorder.document()))
    return document


def essence(diagnosis: Diagnosis) -> dict[str, Any]:
    """What must not change by recording: everything but texts that may hold names."""
    kept = dataclasses.asdict(diagnosis)
    for name in ("evidence", "answers", "holders", "strategies", "recommended", "host", "packages"):
        kept.pop(name)
    kept["problems"] = [(p.code, p.severity, p.fix_command) for p in diagnosis.problems]
    kept["holders"] = [(h.pid, h.is_this_notebook, h.device) for h in diagnosis.holders]
    kept["recommended"] = (diagnosis.recommended.framework, diagnosis.recommended.strategy)
    return kept


@pytest.mark.parametrize("name", sorted(environments()) or ["none"])
def test_a_recording_of_a_recording_gives_the_same_diagnosis(name: str) -> None:
    machine = RecordedMachine(environment(name))
    assert essence(diagnose(RecordedMachine(recorded(machine)))) == essence(diagnose(machine))


def test_this_very_machine_survives_recording(tpuctl: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    live = tpuctl("doctor", "--json", "--record", path)
    again = tpuctl("doctor", "--json", "--replay", path)
    for key in ("runtime", "accelerator", "generation", "chips", "strategy_tf", "strategy_jax"):
        assert again.data[key] == live.data[key]
    assert [p["code"] for p in again.data["problems"]] == [p["code"] for p in live.data["problems"]]


SECRET = "hunter2-sup3r-s3cret-v4lue"


def planted() -> dict[str, Any]:
    """A machine with a secret in every place that a recording can reach."""
    return {
        "env": {
            "KAGGLE_DATA_PROXY_TOKEN": SECRET,
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_DATA_PROXY_URL": f"https://me:{SECRET}@dp.kaggle.net?token={SECRET}",
            "HF_TOKEN": SECRET,
            "USER": "ada.lovelace",
            "HOME": "/home/ada.lovelace",
            "HOSTNAME": "babbage-laptop",
            "TPU_NAME": "adas-private-tpu",
            "TPU_WORKER_HOSTNAMES": "babbage-laptop,other-host",
            "TPU_LIBRARY_PATH": "/home/ada.lovelace/libtpu.so",
            "TPU_ACCELERATOR_TYPE": f"v5e-1 {SECRET}",
            "TF_CONFIG": '{"cluster": {"worker": ["babbage-laptop:2222", "other-host:2222"]}}',
            "XRT_TPU_CONFIG": "tpu_worker;0;babbage-laptop:8470",
            "JAX_PLATFORMS": "tpu",
        },
        "files": {
            "/etc/hostname": "babbage-laptop\n",
            "/proc/sys/kernel/hostname": "babbage-laptop\n",
            "/home/ada.lovelace/libtpu.so": None,
            "/home/ada.lovelace/.keras/keras.json": json.dumps({"backend": "jax", "key": SECRET}),
            "/etc/passwd": "ada.lovelace:x:1000:1000::/home/ada.lovelace:/bin/sh\n",
            "/dev/vfio/0": None,
        },
        "pci": chips(1, "0x0063"),
        "metadata": {
            "instance/attributes/worker-network-endpoints": "babbage-laptop,other-host",
            "instance/attributes/tpu-env": "NODE_ID: 'adas-private-tpu'\nWORKER_ID: '1'\n"
            "CONSUMER_PROJECT_ID: 'adas-project'\n",
            "instance/attributes/agent-worker-number": "1",
            "instance/service-accounts/default/token": SECRET,
        },
        "packages": {"jax": "0.7.2", "tensorflow-cpu": "2.20.0", "keras": "3.11.3"},
        "proc": {
            "self": {"pid": 9, "ppid": 1, "uid": 1000},
            "processes": {
                "7": {
                    "comm": "python",
                    "cmdline": f"/home/ada.lovelace/bin/python train.py --api-key={SECRET}",
                    "ppid": 1,
                    "uid": 1000,
                    "fds": ["/dev/vfio/0"],
                }
            },
        },
    }


NAMES = (SECRET, "ada.lovelace", "babbage", "other-host", "adas-private-tpu", "adas-project")


def test_no_planted_secret_gets_into_a_recording() -> None:
    text = json.dumps(recorded(RecordedMachine(planted())))
    assert [name for name in NAMES if name in text] == []


def test_the_secrets_were_really_there_to_be_found() -> None:
    text = json.dumps(planted())
    assert [name for name in NAMES if name not in text] == []
    document = recorded(RecordedMachine(planted()))
    assert {"KAGGLE_DATA_PROXY_URL", "TPU_NAME", "TF_CONFIG"} <= set(document["env"])
    assert document["proc"]["processes"]["7"]["cmdline"] == "python train.py …"


def test_the_worker_pools_of_vertex_ai_are_kept_without_its_copy_of_the_job() -> None:
    cluster = {
        "cluster": {"workerpool0": ["babbage-laptop:2222"], "workerpool1": ["other-host:2222"]},
        "task": {"type": "workerpool1", "index": 0},
        "job": {"package_uris": ["gs://adas-project/ada.lovelace"], "key": SECRET},
    }
    env = {"CLOUD_ML_JOB_ID": "adas-project-7", "CLUSTER_SPEC": json.dumps(cluster)}
    document = recorded(RecordedMachine({"env": env}))
    assert [name for name in NAMES if name in json.dumps(document)] == []
    found = diagnose(RecordedMachine(document))
    assert (found.runtime, found.hosts, found.worker) == ("gce-vm", 2, 1)


def test_a_scrubbed_machine_keeps_what_the_diagnosis_needs() -> None:
    before = diagnose(RecordedMachine(planted()))
    after = diagnose(RecordedMachine(recorded(RecordedMachine(planted()))))
    assert essence(after) == essence(before)
    assert (after.hosts, after.worker) == (2, 1)


def test_no_planted_secret_gets_into_the_report_of_the_holder(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(planted()))
    for form in ((), ("--json",)):
        assert SECRET not in tpuctl("doctor", "--replay", path, *form).stdout


TOKENS = (
    st.from_regex(r"ya29\.[A-Za-z0-9_-]{20,60}", fullmatch=True)
    | st.from_regex(r"hf_[A-Za-z0-9]{20,40}", fullmatch=True)
    | st.from_regex(r"ghp_[A-Za-z0-9]{36}", fullmatch=True)
    | st.from_regex(r"AIza[A-Za-z0-9_-]{35}", fullmatch=True)
    | st.from_regex(
        r"eyJ[A-Za-z0-9]{10,20}\.eyJ[A-Za-z0-9]{10,30}\.[A-Za-z0-9]{10,20}", fullmatch=True
    )
)


@given(TOKENS, st.sampled_from(["TPU_NAME", "TPU_LIBRARY_PATH", "JAX_PLATFORMS", "TPU_WORKER_ID"]))
def test_a_token_in_an_innocent_variable_is_recognised(token: str, name: str) -> None:
    document = {"env": {name: f"x {token}"}, "pci": chips(1, "0x0063"), "packages": {"jax": "1"}}
    assert token not in json.dumps(recorded(RecordedMachine(document)))


def test_a_live_recording_holds_only_variables_that_were_asked_for(tmp_path: Path) -> None:
    env = {"MY_DATABASE": "postgres://x", "KAGGLE_KERNEL_RUN_TYPE": "Batch", "PATH": "/bin"}
    machine = LiveMachine(root=tmp_path, env=env, path=[])
    assert recorded(machine)["env"] == {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}


def test_a_recording_does_not_name_private_packages(tmp_path: Path) -> None:
    for name in ("acme_secret_project-1.0", "jax-0.7.2"):
        (tmp_path / f"{name}.dist-info").mkdir()
    machine = LiveMachine(root=tmp_path, env={}, path=[str(tmp_path)])
    assert recorded(machine)["packages"] == {"jax": "0.7.2"}


def test_a_record_that_cannot_be_written_says_so(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = tpuctl("doctor", "--json", "--record", tmp_path / "file" / "machine.json")
    assert result.exit_code == 1
    assert result.document["errors"][0]["code"] == "write_failed"


def test_a_record_makes_no_folders(tpuctl: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "not there"
    result = tpuctl("doctor", "--json", "--record", folder / "machine.json")
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (1, "write_failed")
    assert f"the folder {folder} does not exist" in error["message"]
    assert error["hint"] == f"mkdir -p '{folder}'"
    assert not folder.exists()
    folder.mkdir()
    tpuctl("doctor", "--json", "--record", folder / "machine.json")
    assert [path.name for path in folder.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "recorded machine"),
        ("[]", "not a recorded machine"),
        ('{"hello": 1}', "not a recorded machine"),
        ('{"env": []}', "env should be dict"),
        ('{"env": {"A": 1}}', "env.A should be str"),
        ('{"pci": [3]}', "pci[0] should be dict"),
        ('{"pci": [{"addr": "0:0:1.0", "vendor": "0x1ae0"}]}', "pci[0].device is missing"),
        ('{"pci": [], "proc": {"processes": {"x": {}}}}', "as a process id"),
        ('{"env": {}, "files": {"/a": 1}}', "files./a should be str"),
        ('{"env": {}, "proc": {"self": {"pid": "1"}}}', "proc.self.pid should be int"),
        ('{"env": {}, "python": 3}', "python should be str"),
        ("\x00\x01", "Could not read"),
    ],
)
def test_a_broken_recording_is_refused_in_one_sentence(
    tmp_path: Path, tpuctl: Callable[..., Any], text: str, part: str
) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    result = tpuctl("doctor", "--replay", path)
    assert result.exit_code == 1
    assert part in result.stderr
    assert "--record" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_recording_without_fields_is_a_bare_workstation(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"env": {}}')
    diagnosis = diagnose(open_recorded(path))
    assert (diagnosis.runtime, diagnosis.accelerator) == ("workstation", "none")
    assert diagnosis.problems == ()


def test_replay_excludes_what_would_touch_this_machine(
    tmp_path: Path, tpuctl: Callable[..., Any]
) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"env": {}}')
    for option in ("--deep", "--numerics", "--fix"):
        assert tpuctl("doctor", "--replay", path, option).exit_code == 2
