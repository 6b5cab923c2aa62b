"""Whole logs: several workers, notebooks, streams, long lines and text made to be slow."""

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tpuctl as product
from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.explain import SourceMachine, explain, explain_logs
from tpuctl.diagnosis.log_text import unfold, worker_of
from tpuctl.diagnosis.patterns import Pattern, Plain
from tpuctl.errors import InvalidInputError, NotFoundError

OOM = (
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
    "memory in memory space hbm. Used 18.4G of 15.75G hbm. Exceeded hbm capacity by 2.65G."
)
LOGS = Path(__file__).parent / "explain_logs"
LOST = (
    "XlaRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): "
    "/job:jax_worker/replica:0/task:{}"
)


def log_of(prefix: str) -> str:
    """A log of three workers: the second fails first, the others notice it later."""
    rows = [(worker, f"I1120 12:00:0{worker} step 1") for worker in range(3)]
    rows += [(0, f"E1120 12:01:40.0 {LOST.format(1)}"), (1, f"E1120 12:01:07.1 {OOM}")]
    rows += [(2, f"E1120 12:01:41.0 {LOST.format(1)}")]
    return "\n".join(f"{prefix.format(worker)}{line}" for worker, line in rows)


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("[{}] ", "1"),
        ("worker {}: ", "1"),
        ("2020-12-05 12:02:26 10.164.15.249 [{}] ", "1"),
        ("[rank{}]: ", "1"),
        ("[pod/train-{}-abcde/jax] ", "pod/train-1-abcde/jax"),
        ("(TrainWorker pid=40{}) ", "TrainWorker pid=401"),
        ("[default{}]:", "1"),
        ("{}: ", "1"),
        ("Process {}: ", "1"),
        ("[worker/{}] ", "1"),
        ("tpu{}\t", "1"),
        ("(worker, rank={}, pid=4242, ip=10.164.0.9) ", "1"),
        ("(train, pid=40{}) ", "train, pid=401"),
        ("slice-0-host-{}: ", "slice-0-host-1"),
        ("train-slice-0-{}-abcde jax ", "train-slice-0-1-abcde"),
    ],
)
def test_the_worker_that_failed_first_is_named(prefix: str, name: str) -> None:
    explanation = explain(log_of(prefix))
    log = explanation.log
    assert log
    assert (log.workers, log.first.worker, log.first.code) == (3, name, "F66")
    assert [other.code for other in log.followed] == ["heartbeat_lost"] * 2
    assert [match.code for match in explanation.matches] == ["F66", "heartbeat_lost"]


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_the_cause_is_told_from_what_followed_in_a_whole_log(path: Path) -> None:
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    workers, first, code, followed, _ = (part.strip() for part in head.strip("# ").split("|"))
    log = explain(text).log
    assert log
    assert (log.workers, log.first.worker, log.first.code) == (int(workers), first, code)
    assert {other.code for other in log.followed} == set(followed.split())
    # Without the worker that failed first, none of the others is taken for the cause.
    rest = [line for line in text.splitlines() if worker_of(line)[0] != first]
    assert code in followed or code not in {m.code for m in explain("\n".join(rest)).matches}


def test_without_times_the_first_line_counts_and_a_silent_worker_is_suspected() -> None:
    text = "\n".join(f"[{n}] {LOST.format(2)}" for n in (1, 0)) + "\n[2] step 5"
    log = explain(text).log
    assert log
    assert (log.first.worker, log.suspect) == ("1", "2")


def test_several_files_are_several_workers(tpuctl: Callable[..., Any], tmp_path: Path) -> None:
    for number in range(3):
        rows = [r[4:] for r in log_of("[{}] ").splitlines() if r.startswith(f"[{number}]")]
        (tmp_path / f"w{number}.log").write_text("\n".join(rows))
    names = [str(tmp_path / f"w{number}.log") for number in range(3)]
    data = tpuctl("explain", "--json", *names).data
    assert data["log"]["first"]["worker"] == names[1]
    assert data["log"]["first"]["code"] == "F66"
    text = tpuctl("explain", *names).stdout
    assert "w1.log failed first of 3" in text.replace("\n", "")
    assert "heartbeat_lost" in text


def test_an_ordinary_log_is_not_one_of_workers() -> None:
    assert explain(f"step [0] loss 2\n[1] is a footnote\nall fine\nmore\n{OOM}").log is None
    steps = "\n".join(f"{step}: loss 2.1" for step in range(20))
    layers = "\n".join(f"layer-{number}: 4096" for number in range(20))
    assert [explain(f"{text}\n{OOM}").log for text in (steps, layers)] == [None, None]


def test_workers_are_told_apart_by_their_pods_in_the_json_of_a_log() -> None:
    rows = [line.partition(" ") for line in log_of("{} ").splitlines()]
    pods = [
        {"labels": {"pod_name": f"train-{worker}"}, "textPayload": line} for worker, _, line in rows
    ]
    log = explain("\n".join(map(json.dumps, pods))).log
    assert log
    assert (log.workers, log.first.worker, log.first.code) == (3, "train-1", "F66")


def test_the_dash_and_a_pipe_are_stdin(tpuctl: Callable[..., Any]) -> None:
    for arguments in (("-",), ()):
        piped = tpuctl("explain", "--json", *arguments, input=log_of("[{}] "))
        assert piped.data["log"]["first"]["worker"] == "1"


def test_a_missing_log_is_an_error_and_an_error_is_not_a_missing_log(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    missing = tpuctl("explain", "--json", tmp_path / "train.log")
    assert missing.document["errors"][0]["code"] == "not_found"
    with pytest.raises(NotFoundError):
        product.explain(str(tmp_path / "a.txt"))
    assert product.explain("Couldn't open iommu group /dev/vfio/3").matches[0].code == "F05"


def notebook(path: Path, *outputs: dict[str, object]) -> Path:
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, {"outputs": list(outputs)}]}))
    return path


def test_a_notebook_is_read_through_its_error_outputs(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "train.ipynb",
        {"output_type": "stream", "name": "stderr", "text": ["W: step\n", "all well\n"]},
        {"output_type": "display_data", "data": {"image/png": "Exceeded hbm capacity"}},
        {
            "output_type": "error",
            "ename": "RuntimeError",
            "evalue": "Expected 8 worker addresses, got 1.",
            "traceback": ["\x1b[0;31mRuntimeError\x1b[0m", "Expected 8 worker\x1b[0m addresses"],
        },
    )
    assert [match.code for match in product.explain(str(path)).matches] == ["F53"]


def test_a_notebook_is_recognised_in_a_pipe(tpuctl: Callable[..., Any], tmp_path: Path) -> None:
    said = "Expected 8 worker addresses, got 1."
    error: dict[str, object] = {"output_type": "error", "ename": "E", "evalue": said}
    text = notebook(tmp_path / "a.ipynb", error).read_text()
    for written in (text, json.dumps(json.loads(text), indent=1)):
        assert tpuctl("explain", "-", "--json", input=written).data["matches"][0]["code"] == "F53"


def test_a_log_in_json_that_begins_like_a_notebook_is_read_as_text(
    tpuctl: Callable[..., Any],
) -> None:
    log = json.dumps({"metadata": {"pod": "a"}, "message": "Expected 8 worker addresses, got 1."})
    assert tpuctl("explain", "-", "--json", input=log).data["matches"][0]["code"] == "F53"


def test_a_log_without_text_and_a_folder_are_errors(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.log").touch()
    result = tpuctl("explain", tmp_path / "train.log")
    assert (result.exit_code, "> train.log 2>&1" in result.stderr) == (1, True)
    result = tpuctl("explain", notebook(tmp_path / "a.ipynb", {"output_type": "display_data"}))
    assert (result.exit_code, "save it with its outputs" in result.stderr) == (1, True)
    result = tpuctl("explain", tmp_path)
    assert (result.exit_code, f"tpuctl explain {tmp_path}/*.log" in result.stderr) == (1, True)


def test_a_compressed_log_is_read(tpuctl: Callable[..., Any], tmp_path: Path) -> None:
    packed = gzip.compress(
        b"XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"
    )
    path = tmp_path / "worker.log.1.gz"
    path.write_bytes(packed)
    assert tpuctl("explain", path, "--json").data["matches"][0]["code"] == "F66"
    assert tpuctl("explain", "-", "--json", input=packed).data["matches"][0]["code"] == "F66"
    path.write_bytes(packed[:-12])
    result = tpuctl("explain", path)
    assert result.exit_code == 1
    assert "Could not decompress" in result.stderr
    assert "zcat" in result.stderr


def test_a_file_that_is_no_notebook_is_an_error(tmp_path: Path) -> None:
    for text in ("", "[]", '{"cells": 5}', "[" * 100_000, '{"worksheets": []}'):
        (tmp_path / "n.ipynb").write_text(text)
        with pytest.raises(InvalidInputError, match="notebook"):
            product.explain(str(tmp_path / "n.ipynb"))


def test_escape_sequences_do_nothing_and_do_not_reach_the_answer() -> None:
    text = f"\x1b]0;evil title\x07\x1b[2J\x1b[31m{OOM}\x1b[0m\x1b[1;1H"
    match = explain(text).matches[0]
    assert match.code == "F66"
    assert "\x1b" not in json.dumps([match.cause, dict(match.parts)])


@pytest.mark.parametrize("inside", ["\x1b[31m", "\x1b]0;title\x07", "\ud83d"])
def test_what_json_escapes_does_not_reach_the_terminal(inside: str) -> None:
    text = json.dumps({"message": f"x\n{OOM.replace('18.4G', f'18{inside}.4G')}"})
    match = explain(text).matches[0]
    assert match.code == "F66"
    shown = f"{match.cause} {match.parts}"
    assert "\x1b" not in shown.encode().decode()
    assert "\\x1b" not in shown


def test_the_source_of_a_program_stays_one_line() -> None:
    source = r'raise ValueError("no step:\n" + name)'
    assert unfold(source) == [source]
    assert unfold(r"E: no step:\nTraceback") == ["E: no step:", "Traceback"]
    assert unfold(r"cannot open C:\new\train.py") == [r"cannot open C:\new\train.py"]


def test_lines_after_the_last_escape_sequence_are_lines() -> None:
    log = explain(f"[0] a\n[1] \x1b[31m{OOM}\x1b[0m\n[0] b\r\n[1] c\r").log
    assert log
    assert log.first.text.endswith("2.65G. c")


def test_named_parts_appear_in_the_answer() -> None:
    match = explain(OOM).matches[0]
    assert "18.4G" in match.cause
    assert match.parts["limit"] == "15.75G"
    quota = explain("Quota limit 'TPUV6E' has been exceeded. Limit: 32 in zone x").matches[0]
    assert "32" in quota.cause


def test_the_machine_specialises_the_answer() -> None:
    text = "No module named 'tensorflow'"
    here = SourceMachine("colab-tpu-vm", {"jax": "0.7.2"})
    plain, special = explain(text).matches[0], explain(text, here=lambda: here).matches[0]
    assert plain.fix != special.fix
    skew = explain("Mismatched PJRT plugin PJRT API version (0.47)", here=lambda: here).matches[0]
    assert "Installed here: jax 0.7.2." in skew.cause


def test_the_machine_is_not_looked_at_for_a_failure_that_does_not_depend_on_it() -> None:
    def looked() -> SourceMachine:
        raise AssertionError

    assert explain("Expected 8 worker addresses, got 1.", here=looked).matches


def hostile(pattern: str) -> str:
    """A long text that begins the pattern over and over and never ends it."""
    words = pattern.replace("…", " ").split()
    beginning = " ".join(words[: max(1, len(words) - 1)])
    return f"{beginning} " * (20_000 // (len(beginning) + 1))


@pytest.mark.slow
def test_no_pattern_is_slow_on_text_that_almost_matches_it() -> None:
    slow = []
    for code, known in failures().items():
        for text in known.patterns:
            plain = Plain([hostile(text)])
            start = time.process_time()
            next(Pattern(text).find(plain), None)
            if time.process_time() - start > 0.25:
                slow.append((code, text))
    assert slow == []


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "Expected ",
        "Ran out of memory in ",
        "[0] ",
        "\x1b[",
        "{",
        "&#3",
        "b'\\n",
        '{"msg": "\\',
    ],
)
def test_a_line_of_a_megabyte_takes_linear_time(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        start = time.process_time()
        explain(text)
        return time.process_time() - start

    seconds(1000)
    assert seconds(1_000_000) < 20 * max(seconds(100_000), 0.02)


def pieces(blocks: int) -> Iterator[str]:
    line = "[{}] I1120 12:00:00.000 python jax tpu loss=2.3 step 17 open(/dev/ VBAR Expected\n"
    for _ in range(blocks):
        yield "".join(line.format(worker) for worker in range(8)) * 10
    yield f"[3] {OOM}\n"


@pytest.mark.slow
def test_a_long_log_needs_no_more_memory_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuctl.diagnosis.search._WINDOW", 1 << 14)
    monkeypatch.setattr("tpuctl.diagnosis.search._ALL_WINDOWS", 1 << 16)
    explain(OOM)
    peaks = []
    for blocks in (40, 160):
        tracemalloc.start()
        explanation = explain_logs({"": pieces(blocks)})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert explanation.matches[0].code == "F66"
        assert explanation.characters > blocks * 6000
    assert peaks[1] < 1.3 * peaks[0]
