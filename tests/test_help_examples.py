"""The examples at the end of each `--help` are executed as they are written, on the emulator.

A walk is what a reader would type, line by line; lines that are no example prepare for the next.
What cannot be executed says why in NOT_RUN; a test holds that each example is in one or the other.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import LEAN
from tests.pictures import fill
from tests.test_cli import EXAMPLES
from tests.test_profile_trace import SCENES, write
from tests.test_tutorials import ROOT
from tests.warm_python import TPUCTL, warm_python

NOT_RUN = {
    "tpuctl doctor --deep": "takes the devices of this machine; tests/test_doctor_trials.py",
    "tpuctl doctor --fix --yes": "changes this machine; tests/test_doctor_checks.py",
    "tpuctl ssh my-tpu": "is interactive; tests/test_remote_sshd.py",
    "tpuctl ssh my-tpu --worker 3": "is interactive; tests/test_remote_sshd.py",
    'tpuctl run my-tpu -- pip install -U "jax[tpu]"': "installs packages",
    "tpuctl cp --host me@10.0.0.5 ./project :project": "needs other machines",
    "tpuctl data serve": "runs until Ctrl-C; tests/test_data_serve.py",
    "tpuctl data serve --host me@10.0.0.5,me@10.0.0.6": "needs other machines",
    "tpuctl watch t1 --accelerator-type v6e-16 --zone auto --flex --ttl 24h --code . -- sh run.sh":
        "waits a day for its slice; tests/test_gce_slices.py",
    "tpuctl top my-tpu": "runs until Ctrl-C; tests/test_remote_top.py",
    "tpuctl emulator start --scenario faults.json --fresh": "runs until Ctrl-C; run with --detach",
    "tpuctl emulator start": "runs until Ctrl-C; tests/test_emulator_process.py",
    "tpuctl free local": "asks before it ends processes of this machine; tests/test_remote_free.py",
    "tpuctl fit images --accelerator-type v5e-8": "takes minutes; tests/test_fit_docs.py",
    "tpuctl fit model.py:make_model --accelerator-type v5e-8,v6e-8 --max-batch":
        "takes minutes; tests/test_fit_docs.py",
    "tpuctl bench --batch 256,512 --epochs 3": "takes minutes; tests/test_bench.py",
    "tpuctl bench --json > tpu.json": "takes minutes; tests/test_bench.py",
    "tpuctl bench compare cpu.json tpu.json": "compares what the two above write",
    "tpuctl launch images --on kaggle --set epochs=3": "takes a minute; docs/colab-and-kaggle.md",
    "tpuctl launch images --on auto --max-usd 5": "takes a minute; docs/colab-and-kaggle.md",
    "tpuctl demo": "takes minutes; tests/test_demo.py",
    "tpuctl demo --images ~/photos --out demo": "takes minutes; tests/test_demo.py",
    "tpuctl profile watch -- python train.py": "redraws until its program ends, as the next",
}  # fmt: skip
SCENARIO = {
    "time_scale": 2000,
    "buckets": {"bucket": {"location": "us-central1"}},
    "zones": {
        "us-central1-a": {"types": ["v5litepod-8", "v5litepod-16", "v5litepod-64"]},
        "us-west4-a": {"types": ["v5litepod-8"]},
        "us-east5-a": {"types": ["v6e-4"]},
    },
}
CREATE = "tpuctl create {} --accelerator-type v5e-{} --zone us-central1-a --yes"
WALKS = {
    "machine": """
        tpuctl doctor
        tpuctl explain "The TPU is already in use by process with pid 7"
        tpuctl explain worker-0.log worker-1.log notebook.ipynb
        tpuctl explain F05
        tpuctl config
        tpuctl config --json
        tpuctl types
        tpuctl types v5e-8
        tpuctl types gpus
        tpuctl offers
        tpuctl offers v5e-8 --json
        tpuctl top local --once
    """,
    "cloud": f"""
        eval "$(tpuctl emulator start --detach)"
        tpuctl emulator stop
        eval "$(tpuctl emulator start --detach --scenario faults.json --fresh)"
        tpuctl emulator status
        tpuctl emulator status --json
        tpuctl quota
        tpuctl quota v5e-8
        tpuctl doctor --provider kaggle
        tpuctl create t1 --accelerator-type v5e-8 --zone auto --ttl 4h
        tpuctl delete t1 --yes
        tpuctl create t1 --accelerator-type v5e-8 --zones us-west4-a,us-central1-a --spot
        tpuctl delete t1 --yes
        tpuctl create t1 --provider gce --accelerator-type v6e-4 --zone us-east5-a --flex --ttl 4h
        tpuctl delete t1 --yes
        tpuctl create c1 --provider colab --accelerator-type v5e-1 --ttl 2h
        tpuctl list --provider colab
        tpuctl delete c1 --yes
        tpuctl create pod --accelerator-type v5e-64 --zone us-central1-a --queued --dry-run
        {CREATE.format("my-tpu", 8)}
        {CREATE.format("other-tpu", 8)}
        tpuctl list
        tpuctl list --all-zones --json
        tpuctl show my-tpu
        tpuctl show my-tpu --zone us-central1-a
        tpuctl wait my-tpu
        tpuctl delete my-tpu --yes
        {CREATE.format("my-tpu", 4).replace("v5e", "v6e").replace("us-central1-a", "us-east5-a")}
        tpuctl migrate my-tpu
        tpuctl migrate my-tpu --to gce --yes
        tpuctl delete --all --zone us-central1-a --dry-run
        tpuctl delete my-tpu
        tpuctl wait my-tpu --for gone --timeout 10m
        {CREATE.format("my-tpu", 8)}
        tpuctl delete my-tpu other-tpu --yes
        tpuctl gc
        tpuctl gc --yes
        tpuctl emulator stop
    """,
    "workers": f"""
        eval "$(tpuctl emulator start --detach --scenario faults.json --fresh)"
        {CREATE.format("my-tpu", 16)}
        tpuctl run my-tpu --worker 0 -- nproc
        tpuctl cp ./project my-tpu:project --dry-run
        tpuctl cp ./project my-tpu:project
        tpuctl run my-tpu -- sh -c 'mkdir -p logs && cp project/train.py . && date > logs/a'
        tpuctl cp my-tpu:logs ./logs
        tpuctl run my-tpu --detach --job train -- python3 train.py
        tpuctl logs my-tpu --list
        tpuctl logs my-tpu --follow
        tpuctl logs my-tpu --job train --tail 20
        tpuctl logs my-tpu | tpuctl explain
        tpuctl stop my-tpu --job train --grace 60s
        tpuctl stop my-tpu
        tpuctl free my-tpu --dry-run
        tpuctl free my-tpu --yes
        tpuctl launch train.py --on my-tpu --code . --detach
        {CREATE.format("t1", 8)}
        tpuctl watch t1 --code . -- python train.py
        tpuctl watch t1 --code . --hang-after 15m --delete -- python train.py
        tpuctl watch t1 --accelerator-type v5e-8 --zone auto --spot --code . -- python train.py
        tpuctl emulator stop
    """,
    "hosted": """
        eval "$(tpuctl emulator start --detach --scenario faults.json --fresh)"
        tpuctl launch mnist-cnn --set data=fake --set steps=20
        tpuctl launch train.py --dry-run -- --epochs 3
        tpuctl launch train.py --on gke --accelerator-type v6e-16 --staging gs://bucket --detach
        tpuctl profile run --on kaggle -- python train.py
        tpuctl watch --on kaggle,colab --checkpoints training -- python train.py
        tpuctl emulator stop
    """,
    "data": """
        eval "$(tpuctl emulator start --detach --scenario faults.json --fresh)"
        tpuctl data presize photos photos-224 --size 224
        python upload.py
        tpuctl data presize gs://bucket/photos gs://bucket/shards --size 224
        tpuctl data presize photos shards --size 224,384 --format wds --dry-run
        tpuctl data cache pipeline.py:make_dataset cached
        rm -r cached
        tpuctl data cache pipeline.py:make_dataset cached --variants 4
        tpuctl data cache gs://bucket/shards --limit 200GB
        tpuctl data verify photos-224
        tpuctl data verify gs://bucket/shards --deep
        tpuctl data show photos-224
        tpuctl data show photos-224 --sheet sheet.png
        tpuctl emulator stop
    """,
    "profile": """
        tpuctl profile run photos --device-step-ms 60 --seconds 3
        tpuctl profile run pipeline.py:make_dataset --seconds 3 --out before.tpuprof
        tpuctl profile run --steps 100 -- python train.py
        tpuctl profile watch --seconds 60 -- python train.py
        tpuctl profile show before.tpuprof
        tpuctl profile show before.tpuprof --html report.html --png report.png
        tpuctl profile run --out after.tpuprof -- python train.py
        tpuctl profile diff before.tpuprof after.tpuprof
        tpuctl profile diff before.tpuprof after.tpuprof --json
        tpuctl profile trace logs/
        tpuctl profile trace logs/ --html trace.html --fail-if "idle>20%"
    """,
    "scripts": """
        tpuctl templates
        tpuctl templates list
        tpuctl templates show mnist-cnn
        tpuctl templates new mnist-cnn my-project
        tpuctl lint train.py notebooks/
        tpuctl lint old.ipynb --runtime kaggle --diff
        tpuctl lint . --select T1,T3 --format github
    """,
}  # fmt: skip
# `lint` exits 1 where it finds something, `--fail-if` where the condition holds, `doctor` where
# this machine has a problem.
MAY_EXIT_1 = ("tpuctl lint", "tpuctl profile trace", "tpuctl doctor")
PIPELINE = """
import time

import grain


def double(number):
    time.sleep(0.001)
    return number * 2


def make_dataset():
    return grain.MapDataset.range(64).map(double).batch(4)
"""
UPLOAD = """
from pathlib import Path

from google.cloud import storage

bucket = storage.Client(project="p").bucket("bucket")
for path in Path("photos").rglob("*.*"):
    bucket.blob(str(path)).upload_from_filename(path)
"""
TRAIN = "print('The TPU is already in use by process with pid 7')\n"
TRAIN_ON_IT = (
    PIPELINE
    + "\nfor batch in make_dataset().repeat(20).to_iter_dataset():\n    time.sleep(0.005)\n"
)


def lines(walk: str) -> list[str]:
    return [line.strip() for line in walk.strip().splitlines()]


def test_every_example_is_in_a_walk_or_says_why_not() -> None:
    executed = {line for walk in WALKS.values() for line in lines(walk)}
    examples = {line for _, line in EXAMPLES}
    assert set(NOT_RUN) <= examples
    assert not executed & set(NOT_RUN)
    assert sorted(examples - executed - set(NOT_RUN)) == []


def prepare(folder: Path, walk: str) -> None:
    """What the examples take for granted: photographs, a pipeline, a script, notebooks, logs."""
    fill(folder / "photos", 12, classes=3)
    cell: dict[str, object] = {
            "cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
            "source": "import os\nos.environ['COLAB_TPU_ADDR']"}  # fmt: skip
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    script = TRAIN_ON_IT if walk in ("profile", "hosted") else TRAIN
    # A session on Kaggle ends within seconds where an hour takes one.
    scenario = {**SCENARIO, "time_scale": 100} if walk == "hosted" else SCENARIO
    files = {
        "faults.json": json.dumps(scenario), "pipeline.py": PIPELINE, "train.py": script,
        "project/train.py": TRAIN, "upload.py": UPLOAD, "notebooks/a.ipynb": notebook,
        "old.ipynb": notebook, "notebook.ipynb": notebook, "worker-0.log": "step 1\n",
        "worker-1.log": "The TPU is already in use by process with pid 7\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if walk == "profile":
        (folder / "logs").mkdir()
        write(folder / "logs", SCENES["input"])


def execute(walk: str, folder: Path) -> list[tuple[str, int, str]]:
    """Each line with its exit code and what it printed."""
    out = folder.with_name("results")
    out.mkdir()
    script = f'tpuctl() {{ {warm_python(TPUCTL).in_shell("-m", "tpuctl")} "$@"; }}\n'
    for number, line in enumerate(lines(WALKS[walk])):
        script += f'{{ {line}\n}} >"{out}/{number}.out" 2>&1\necho $? >"{out}/{number}.code"\n'
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{LEAN}", "COLUMNS": "80", "TF_CPP_MIN_LOG_LEVEL": "3",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    reader, terminal = os.openpty()
    os.write(reader, b"y\n" * 20)  # `create` and `delete` ask on a terminal
    subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=terminal, check=False)
    os.close(terminal)
    os.close(reader)
    return [
        (line, int((out / f"{n}.code").read_text()), (out / f"{n}.out").read_text(errors="replace"))
        for n, line in enumerate(lines(WALKS[walk]))
    ]


def failed(said: str) -> bool:
    """Whether there is a traceback, other than that of a program that `--steps` interrupts."""
    return "Traceback" in said and "KeyboardInterrupt" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("walk", WALKS)
def test_the_examples_of_the_help_do_what_they_say(walk: str, tmp_path: Path) -> None:
    if lacking := [each for each in ("libcst", "grain") if find_spec(each) is None]:
        pytest.skip(f"{lacking} not installed")
    folder = tmp_path / "here"
    folder.mkdir()
    prepare(folder, walk)
    try:
        done = execute(walk, folder)
    finally:
        subprocess.run([sys.executable, "-m", "tpuctl", "emulator", "stop"], capture_output=True)
    wrong = [
        f"$ {line}\nexited {code}:\n{said[-1500:]}"
        for line, code, said in done
        if code not in ((0, 1) if line.startswith(MAY_EXIT_1) else (0,)) or failed(said)
    ]
    assert not wrong, "\n\n".join(wrong)
