"""What the doctor does besides looking: trials in a child, arithmetic, repairs."""

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.machines import chips, codes, diagnosed
from tests.sharing import needs
from tests.test_doctor_checks import FIRES, THP, tpu_vm
from tpuctl.diagnosis import repair, trials
from tpuctl.diagnosis._trial import MARK, PV, Q
from tpuctl.diagnosis.diagnose import examine
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.diagnosis.trials import (
    REFERENCE,
    Trial,
    check_devices,
    check_numerics,
    run_trial,
    try_devices,
    try_numerics,
)
from tpuctl.errors import UsageError
from tpuctl.runtime.live import LiveMachine

ROWS = [[0.0] * 4 for _ in range(4)]


def child(code: str, *, deadline_s: float = 30) -> Trial:
    return run_trial((), program=(sys.executable, "-c", code), deadline_s=deadline_s)


def test_a_child_answers_on_a_marked_line_among_whatever_else_it_prints() -> None:
    code = f"print('noise'); print('{MARK}{{\"a\": 1}}'); print('more noise')"
    assert child(code).answer == {"a": 1}


@pytest.mark.parametrize("code", ["", f"print('{MARK}{{')", f"print('{MARK}[]')"])
def test_a_child_without_a_proper_answer_has_failed(code: str) -> None:
    result = child(code)
    assert result.answer is None
    assert result.error


def test_the_error_of_a_child_is_explained() -> None:
    code = "raise SystemExit(\"Couldn't open iommu group /dev/vfio/1: token hf_\" + 'a1' * 12)"
    result = child(code)
    assert [match.code for match in result.matches] == ["F05"]
    assert "hf_a1" not in str(result.error)


@pytest.mark.slow
def test_a_child_that_hangs_dies_with_its_own_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # A shell, which has begun long before its time is over.
    code = f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; wait"
    result = run_trial((), program=("sh", "-c", code), deadline_s=2, grace_s=0.2)
    assert "was stopped" in str(result.error)
    assert len(pids.read_text().split()) == 2
    for pid in map(int, pids.read_text().split()):
        assert gone(pid)


def gone(pid: int) -> bool:
    """Whether a killed process disappears; the kernel may take a moment to bury it."""
    patience = threading.Event()
    return any(not alive(pid) or patience.wait(0.05) for _ in range(2400))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_lock_of_a_killed_child_is_removed_and_an_older_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "libtpu_lockfile"
    monkeypatch.setattr(trials, "LOCKFILE", str(lock))
    die = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    code = f"open({str(lock)!r}, 'w').close(); {die}"
    assert child(code).answer is None
    assert not lock.exists()
    lock.touch()
    child(code)
    assert lock.exists()


def answer(sums: list[float]) -> Trial:
    names = [f"TPU_{n}" for n in range(len(sums))]
    return Trial({"devices": names, "sums": sums}, 1.0, None, ())


def test_devices_are_counted_and_their_products_checked() -> None:
    good = 128.0**3
    assert check_devices("jax", answer([good] * 4), 4).ok
    assert check_devices("jax", answer([good]), None).ok
    missing = check_devices("jax", answer([good] * 3), 4)
    assert "sees 3 devices; this machine has 4" in str(missing.error)
    wrong = check_devices("jax", answer([good, 0.0]), 2)
    assert "gave a wrong result on TPU_1" in str(wrong.error)


def test_a_trial_is_not_started_while_another_process_has_the_tpu() -> None:
    deep = try_devices(diagnosed(FIRES["F05"][0]))
    assert (deep.ok, deep.seconds) == (False, 0.0)
    assert "held by pid 7" in str(deep.error)
    assert "held by pid 7" in str(try_numerics(diagnosed(FIRES["F05"][0])).error)


def test_a_trial_needs_a_framework() -> None:
    bare = diagnosed({"pci": chips(1, "0x0063"), "files": {"/dev/vfio/0": None}})
    assert "nothing to test it with" in str(try_devices(bare).error)


def test_the_reference_is_exact() -> None:
    pv, q = ([[Fraction(value) for value in row] for row in rows] for rows in (PV, Q))
    inverse = inverted(pv)
    qep = product(product(transposed(inverse), q), inverse)
    assert product(product(transposed(pv), qep), pv) == q
    assert [tuple(map(float, row)) for row in qep] == list(REFERENCE["QEP"])
    assert REFERENCE["Q"] == Q


Matrix = list[list[Fraction]]


def product(left: Matrix, right: Matrix) -> Matrix:
    columns = transposed(right)
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction()) for column in columns]
        for row in left
    ]


def transposed(rows: Matrix) -> Matrix:
    return [list(column) for column in zip(*rows, strict=True)]


def inverted(matrix: Matrix) -> Matrix:
    """Gauss and Jordan, in fractions: no rounding at all."""
    size = len(matrix)
    rows = [
        [*row, *(Fraction(int(column == number)) for column in range(size))]
        for number, row in enumerate(matrix)
    ]
    for column in range(size):
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for number in range(size):
            if number != column:
                pairs = zip(rows[number], rows[column], strict=True)
                factor = rows[number][column]
                rows[number] = [a - factor * b for a, b in pairs]
    return [row[size:] for row in rows]


def measured(default: float, highest: float) -> Trial:
    results = {}
    for precision, error in (("default", default), ("highest", highest)):
        results[precision] = {
            name: [[value + error for value in row] for row in rows]
            for name, rows in REFERENCE.items()
        }
    return Trial({"device": "TPU v5 lite0", "results": results}, 1.0, None, ())


def test_numerics_measures_each_precision_and_says_what_it_means() -> None:
    tpu = check_numerics("jax", measured(2.0, 1e-5))
    assert "bfloat16" in tpu.explanation
    assert [e.max_abs_error for e in tpu.errors] == pytest.approx([2.0, 2.0, 1e-5, 1e-5])
    assert "agree" in check_numerics("jax", measured(1e-5, 1e-5)).explanation
    assert "less than single" in check_numerics("jax", measured(1e-3, 1e-5)).explanation


def test_a_failed_trial_makes_the_exit_code_1() -> None:
    diagnosis = diagnosed({})
    assert diagnosis.exit_code == 0
    failed = check_numerics("jax", Trial(None, 1.0, "boom", ()))
    assert dataclasses.replace(diagnosis, numerics=failed).exit_code == 1


@pytest.mark.tf
@pytest.mark.slow
def test_tensorflow_on_this_cpu_multiplies_and_keeps_single_precision(
    tpuctl: Callable[..., Any],
) -> None:
    needs("tensorflow")
    data = tpuctl("doctor", "--deep", "--numerics", "--json").data
    assert data["deep"]["ok"], data["deep"]
    assert data["numerics"]["error"] is None
    errors = {(e["precision"], e["result"]): e for e in data["numerics"]["errors"]}
    assert set(errors) == {(p, r) for p in ("default", "highest") for r in ("QEP", "Q")}
    assert 0 < errors["highest", "QEP"]["max_abs_error"] < 1e-2
    assert errors["highest", "Q"]["max_rel_error"] < 1e-4


def hugepages_machine(root: Path, value: str = "always [madvise] never\n") -> LiveMachine:
    folder = root / "sys/bus/pci/devices/0000:00:05.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1ae0")
    (folder / "device").write_text("0x0063")
    (folder / "driver").symlink_to("/drivers/vfio-pci")
    (folder / "iommu_group").symlink_to("/groups/0")
    (root / "dev/vfio").mkdir(parents=True)
    (root / "dev/vfio/0").symlink_to("/dev/null")
    path = root / THP.strip("/")
    path.parent.mkdir(parents=True)
    path.write_text(value)
    return LiveMachine(root=root, env={"TPU_SKIP_MDS_QUERY": "1"}, path=[])


class Questions:
    """Approves everything and remembers what was asked; or refuses."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.asked: list[str] = []
        self._refuse = refuse

    def __call__(self, question: str) -> None:
        self.asked.append(question)
        if self._refuse:
            raise UsageError("no")


def test_a_repair_is_shown_before_and_checked_after(tmp_path: Path) -> None:
    questions = Questions()
    machine = hugepages_machine(tmp_path)
    # sysfs shows the choice in brackets; a plain file has to be given the whole line.
    before = examine(machine=machine)
    assert codes(before) == {"F13"}
    after = examine(machine=machine, approve=questions)
    assert questions.asked == [
        f"F13: write 'always' to {repair.HUGEPAGES}? (undo: echo madvise > {repair.HUGEPAGES})"
    ]
    assert (tmp_path / THP.strip("/")).read_text() == "always"
    (done,) = after.repairs or ()
    assert (done.done, done.error) == (True, None)
    assert done.verified is False


def test_a_repair_that_worked_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = hugepages_machine(tmp_path)
    monkeypatch.setattr(
        repair, "_write_value", lambda path, value: path.write_text("[always] madvise never\n")
    )
    after = examine(machine=machine, approve=Questions())
    assert codes(after) == set()
    assert [r.verified for r in after.repairs or ()] == [True]


def test_a_repair_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    machine = hugepages_machine(tmp_path)
    with pytest.raises(UsageError):
        examine(machine=machine, approve=Questions(refuse=True))
    assert (tmp_path / THP.strip("/")).read_text() == "always [madvise] never\n"


def test_keras_configuration_is_changed_with_a_copy_kept(tmp_path: Path) -> None:
    machine = hugepages_machine(tmp_path, "[always] madvise never\n")
    config = tmp_path / "root/.keras/keras.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"floatx": "float32", "backend": "tensorflow"}')
    site = tmp_path / "site"
    for name in ("tensorflow-2.20.0", "keras-3.13.2", "jax-0.7.2", "jaxlib-0.7.2", "libtpu-0.0.23"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    env = {**machine.env, "HOME": "/root"}
    after = examine(
        machine=LiveMachine(root=tmp_path, env=env, path=[str(site)]), approve=Questions()
    )
    assert config.read_text() == '{"floatx": "float32", "backend": "jax"}'
    assert '"tensorflow"' in config.with_suffix(".json.before-tpuctl").read_text()
    assert [(r.code, r.verified) for r in after.repairs or ()] == [("F35", True)]


def test_a_lock_file_is_moved_aside_only_when_nobody_can_hold_it() -> None:
    def plans(**more: Any) -> list[repair.Repair]:
        from tpuctl.diagnosis.diagnose import find_problems
        from tpuctl.diagnosis.report import MachineView
        from tpuctl.runtime.detect import detect
        from tpuctl.runtime.replay import RecordedMachine

        machine = RecordedMachine(tpu_vm(proc={"lockfile_inode": 77, "lockfile_uid": 0, **more}))
        view = MachineView(machine, detect(machine))
        return repair.plan_repairs(view, find_problems(view))

    assert [plan.code for plan in plans()] == ["F02"]
    assert plans(locks=["1: POSIX ADVISORY WRITE 7 fe:00:77 0 EOF"]) == []
    assert plans(processes={"7": {"fds": "unreadable"}}) == []


def test_a_repair_that_fails_says_why(tmp_path: Path) -> None:
    plan = repair.Repair("F02", "x", "y", lambda: os.replace(tmp_path / "gone", tmp_path / "b"))
    assert "No such file" in str(repair.apply_repair(plan).error)


def test_fix_without_a_terminal_is_an_error_that_names_yes_or_has_nothing_to_do(
    tpuctl: Callable[..., Any],
) -> None:
    result = tpuctl("doctor", "--fix", "--json")
    if result.exit_code == 2:
        assert "--yes" in result.document["errors"][0]["hint"]
    else:
        assert result.data["repairs"] == []
        assert "fixed automatically" in tpuctl("doctor", "--fix").stdout


def test_the_doctor_prints_every_key_of_the_contract(tpuctl: Callable[..., Any]) -> None:
    data = tpuctl("doctor", "--json").data
    keys = (
        "runtime accelerator generation chips cores devices hosts usable worker container evidence "
        "host packages strategy_tf strategy_jax strategy_torch recommended holders problems"
    )
    assert set(keys.split()) <= set(data)
    assert set(data["host"]) >= {"vcpus", "memory_bytes", "disk_free_bytes", "python"}
    assert set(data["recommended"]) >= {"framework", "strategy", "snippet"}
    fields = {field.name for field in dataclasses.fields(Diagnosis)}
    assert set(data) <= fields
