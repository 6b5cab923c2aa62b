"""tpuctl in a notebook: a real notebook, executed by a real kernel."""

import json
from pathlib import Path
from typing import Any

import pytest

import tpuctl
from tests.machines import chips

pytestmark = [
    pytest.mark.slow,
    # Jupyter's own event loop and sockets complain on some Python versions.
    pytest.mark.filterwarnings("default"),
]


def executed(folder: Path, *cells: str) -> list[Any]:
    """Run cells in a fresh kernel; the outputs of each."""
    nbformat = pytest.importorskip("nbformat", reason="needs the dev group's nbclient")
    nbclient = pytest.importorskip("nbclient", reason="needs the dev group's nbclient")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    path = folder / "day.ipynb"
    nbformat.write(notebook, path)
    client = nbclient.NotebookClient(
        nbformat.read(path, as_version=4),
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    return [cell.outputs for cell in client.execute().cells]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A recorded Cloud TPU VM with a script tag where a version should be."""
    path = tmp_path / "machine.json"
    path.write_text(
        json.dumps(
            {
                "env": {"TPU_SKIP_MDS_QUERY": "1"},
                "pci": chips(4, "0x006f"),
                "files": {f"/dev/vfio/{n}": None for n in range(4)},
                "packages": {"jax": "0.7.2", "jaxlib": "0.9.0", "keras": "<script>alert(1)"},
            }
        )
    )
    return path


def test_a_notebook_shows_the_card_and_the_magic_shows_the_same(
    tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tpuctl.__file__).parents[1]))
    called, nothing, magic, other, wrong, here = executed(
        tmp_path,
        "import tpuctl\ntpuctl.doctor(replay='machine.json')",
        "%load_ext tpuctl",
        "%tpuctl doctor --replay machine.json",
        "%tpuctl types v5e-8",
        "%tpuctl doctor --replay missing.json",
        "print(tpuctl.doctor().runtime)",
    )
    html = called[0]["data"]["text/html"]
    assert html == magic[0]["data"]["text/html"]
    assert nothing == []
    assert "TPU v6e: 4 chips" in html
    assert "F15" in html
    assert called[0]["data"]["text/plain"].startswith("<tpuctl doctor: ✗ a problem blocks")
    assert "must start on 1 worker" in str(other)
    assert wrong[0]["output_type"] == "stream"
    assert "recorded machine from missing.json" in wrong[0]["text"]
    assert here[0]["text"].strip()


BUSY = """
import os
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.runtime.live import LiveMachine
from tpuctl.runtime.machine import LockFile, PciDevice

class Busy(LiveMachine):
    locks = (f"1: POSIX ADVISORY WRITE {os.getpid()} 00:01:77 0 EOF",)
    lockfile = LockFile(77, os.geteuid())
    pci = (PciDevice("0000:00:05.0", "0x1ae0", "0x0063", driver="vfio-pci"),)

found = diagnose(Busy(env={"TPU_SKIP_MDS_QUERY": "1", "KAGGLE_KERNEL_RUN_TYPE": "Batch"}))
print([h.is_this_notebook for h in found.holders], "F07" in {p.code for p in found.problems})
"""


def test_a_cell_that_awaits_runs_as_it_is_and_says_that_it_is_not_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tpuctl.__file__).parents[1]))
    _, awaits, plain = executed(
        tmp_path,
        "%load_ext tpuctl\nimport asyncio",
        "%%tpuprofile\nfound = await asyncio.sleep(0, 5)\n!echo hi\nfound + 1",
        "%%tpuprofile\nasync def later():\n    await asyncio.sleep(0)\nprint(found)",
    )
    texts = [output.get("text", "") for output in awaits]
    assert [text for text in texts if "not profiled, because it has await" in text]
    assert [output.data["text/plain"] for output in awaits if "data" in output] == ["6"]
    assert not [output for output in plain if "await" in output.get("text", "")]


def test_a_kernel_that_holds_the_tpu_knows_itself(tmp_path: Path) -> None:
    (outputs,) = executed(tmp_path, BUSY)
    assert outputs[0]["text"].strip() == "[True] True"


def test_tpuctl_has_its_lazy_functions_and_no_others() -> None:
    assert {"doctor", "load_ipython_extension"} <= set(dir(tpuctl))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tpuctl.nonsense
