"""What errors and dead processes say, and that hints name commands that exist."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.cli.contents import CONTENTS
from tpuctl.profiling.request import Target, try_alone
from tpuctl.usercode.error_summary import describe, last_line

PACKAGE = Path(__file__).resolve().parents[1] / "tpuctl"
OURS = [*(PACKAGE / "profiling").rglob("*.py"), *(PACKAGE / "reporters").glob("profile*.py")]
START_UP = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795213314.074240   22765 cudart_stub.cc:31] Could not find cuda drivers
E0000 00:00:1795213314.074240   22765 cuda_dnn.cc:31] Unable to register factory
2026-11-20 22:10:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations
To enable the following instructions: AVX2 FMA, rebuild TensorFlow
"""


def test_what_tensorflow_says_while_starting_is_nobodys_last_words() -> None:
    assert last_line(START_UP) == ""
    assert last_line(f"a line of mine\n{START_UP}") == "a line of mine"


def test_a_fatal_line_is_the_last_words() -> None:
    fatal = "F0000 00:00:1795213314.074240   22765 array.cc:31] Check failed: a < b"
    assert last_line(f"{START_UP}{fatal}\n{START_UP}") == fatal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain words", "plain words"),
        ("", ""),
        (
            "{{function_node __wrapped__X_device_/job:localhost/device:CPU:0}} bad : Tensor had NaN"
            " values\\n\\t [[{{node CheckNumerics}}]] [Op:IteratorGetNext] name: ",
            "bad : Tensor had NaN values",
        ),
        ("\\n\\t [[{{node CheckNumerics}}]]\\nbad", "bad"),
        (
            "in user code:\\n\\n    bad words\\n\\t [[{{node X}}]] [Op:CheckNumerics] name: ",
            "bad words",
        ),
        (
            "Error in user-defined function passed to MapDataset:18 transformation with iterator: "
            "Iterator::Root::ParallelMapV2: assertion failed: [x is too large]",
            "assertion failed: [x is too large]",
        ),
        ("[1, 2] is not in [[3]]", "[1, 2] is not in [[3]]"),
        (
            "Caught RuntimeError in DataLoader worker process 0.\\nOriginal Traceback (most recent"
            ' call last):\\n  File "<string>", line 3, in f\\nRuntimeError: the disk is gone\\n',
            "the disk is gone",
        ),
    ],
)
def test_the_users_own_words_are_kept(text: str, said: str) -> None:
    words = describe(RuntimeError(text.replace("\\n", "\n").replace("\\t", "\t")))
    assert words == (f"RuntimeError: {said}" if said else "RuntimeError")


def test_a_syntax_error_is_where_it_is_written() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ndef make(:\n", "/home/me/train.py", "exec")
    assert describe(caught.value).endswith("(/home/me/train.py:2)")


def test_the_line_is_the_users_and_not_the_librarys() -> None:
    with pytest.raises(ValueError, match="malformed") as caught:
        ast.literal_eval(ast.Name("x"))
    assert re.search(r"\(.*test_pipeline_complaint.py:\d+\)$", describe(caught.value))


def test_the_command_in_a_hint_runs(tmp_path: Path) -> None:
    place = tmp_path / "it's mine.py"
    place.write_text("def make():\n    raise SystemExit('seen')\n")
    hint = try_alone(Target("function", str(place), "make"))
    assert hint
    _, _, code = shlex.split(hint.partition(": ")[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "seen"


def test_a_module_is_called_too_and_a_folder_has_no_function() -> None:
    hint = try_alone(Target("function", "a.b", "make"), iterate=True)
    assert hint
    assert hint.endswith("python -c 'from a.b import make; list(zip(make(), range(1000)))'")
    assert try_alone(Target("photos", "flat")) is None


def named_commands(source: str) -> set[str]:
    """The commands that the strings of a program tell the reader to run."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {word for text in texts for word in re.findall(r"(?:^|: |`)tpuctl ([a-z]+)", text)}


def test_hints_name_only_commands_that_exist() -> None:
    named = {word for file in OURS for word in named_commands(file.read_text())}
    assert {"data", "types", "profile"} <= named
    assert named <= {entry.name for entry in CONTENTS}


def test_the_search_for_commands_would_find_one_that_does_not_exist() -> None:
    assert named_commands("hint = f'{x}: tpuctl fly --now'") == {"fly"}
