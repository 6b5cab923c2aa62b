"""What a hosted machine gets of tpuctl itself."""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tpuctl.diagnosis.catalogue import failures
from tpuctl.providers.pack import pack

DATA = ".tpuctl/tpuctl/diagnosis/data/failures"


def codes_sent(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = [each for each in tar.getnames() if re.fullmatch(rf"{DATA}/\w+\.json", each)]
        texts = [file.read() for name in names if (file := tar.extractfile(name))]
    return {each["code"] for text in texts for each in json.loads(text)["failures"]}


@pytest.mark.parametrize(
    ("program", "has_tensorflow", "has_torch"),
    [
        ("import jax\n", False, False),
        ("import jax, torch\n", False, True),
        ("from keras import layers\n", True, False),
        ("import tensorflow as tf\nimport torch_xla\n", True, True),
    ],
)
def test_failures_of_a_framework_are_sent_with_programs_that_name_it(
    tmp_path: Path, program: str, has_tensorflow: bool, has_torch: bool
) -> None:
    (tmp_path / "data.bin").write_bytes(b"torch tensorflow")
    (tmp_path / "train.py").write_text(program)
    codes = codes_sent(pack({}, [(tmp_path, ""), (tmp_path / "train.py", "again")]).archive)
    assert "tree_mismatch" in codes
    assert ("keras_symbolic" in codes) == has_tensorflow
    assert ("xla_type_unsupported" in codes) == has_torch


def test_failures_of_a_framework_are_sent_with_a_command_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import jax\n")
    codes = codes_sent(pack({"command": ["torchrun", "train.py"]}, [(tmp_path, "")]).archive)
    assert "xla_type_unsupported" in codes
    assert "keras_symbolic" not in codes


def test_a_hosted_machine_knows_every_failure_that_its_doctor_can_find(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import jax\n")
    numbered = {code for code in failures() if code[0] == "F" and code[1:].isdigit()}
    assert numbered <= codes_sent(pack({}, [(tmp_path, "")]).archive)
