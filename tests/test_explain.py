"""Error texts and logs: the failure that they show comes first."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import shown
from tests.machines import shared
from tpuctl.diagnosis import catalogue, evidence
from tpuctl.diagnosis.catalogue import KINDS, NO_CLAIM, Failure, condition, failures, families
from tpuctl.diagnosis.diagnose import CHECKS
from tpuctl.diagnosis.explain import explain
from tpuctl.diagnosis.patterns import Pattern
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.reporters.machine import render_explanation


def first(text: str) -> str | None:
    return next((match.code for match in explain(text).matches), None)


def example(pattern: str) -> str:
    """Write a text that a pattern describes."""
    several = re.sub(r"\{\w+\+\}", "one two", pattern)
    return re.sub(r"\{\w+\}", "xyz7", several).replace("…", " x y ")


def every_pattern() -> list[tuple[str, str]]:
    return [(code, text) for code, known in failures().items() for text in known.patterns]


def test_the_catalogue_is_complete_and_every_check_belongs_to_it() -> None:
    numbered = sorted(code for code in failures() if re.fullmatch(r"F\d\d", code))
    assert numbered == [f"F{number:02}" for number in range(1, 76)]
    assert set(CHECKS) <= set(failures())
    assert len(failures()) >= 700


def test_no_code_is_used_twice_and_every_family_says_what_it_is_about() -> None:
    folder = Path(catalogue.__file__).parent / "data" / "failures"
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    codes = [entry["code"] for document in documents for entry in document["failures"]]
    assert len(codes) == len(set(codes)) == len(failures())
    assert set(families()) == {path.stem for path in folder.glob("*.json")}
    assert all(families().values())


def test_every_entry_is_well_formed() -> None:
    for known in failures().values():
        check_entry(known)


def check_entry(known: Failure) -> None:
    assert re.fullmatch(r"F\d\d|[a-z][a-z0-9_]+", known.code)
    assert known.severity in ("blocking", "warning", "note")
    assert known.confidence in ("high", "medium", "low")
    assert known.kind in KINDS
    assert known.title
    assert not known.title.endswith(".")
    assert known.cause.endswith(".")
    assert known.fix.endswith(".")
    assert known.patterns
    conditions = (*known.only_if, *known.not_if)
    assert not [words for words in conditions if words.endswith("_")], "never matches a longer word"
    assert known.sources
    for address, day in known.sources.items():
        assert address.strip() == address != ""
        date.fromisoformat(day)
    parts = {name for text in known.patterns for name in Pattern(text).names}
    if known.kind in ("unknown", "unsure"):
        parts |= {"component"}
    if known.kind == "unknown":
        parts |= {"exception"}
    assert {name for text in known.details for name in condition(text).names} <= parts
    assert all(set(change) <= {"fix", "fix_command"} for change in known.on.values())


@pytest.mark.slow
def test_every_pattern_can_be_searched_and_is_found_in_its_own_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They do not change the answer, and take most of the time.
    monkeypatch.setattr("tpuctl.diagnosis.explain._rivals", lambda *_: ())
    users: dict[str, set[str]] = {}
    for code, text in every_pattern():
        assert len(Pattern(text).anchor) >= 3, (
            f"{code}: no whole word that a text must have: {text}"
        )
        assert not re.search(r"[…}]\{|……", text), f"{code}: two gaps without a word: {text}"
        assert not text.endswith("…'"), f"{code}: never matches a longer word: {text}"
        users.setdefault(text, set()).add(code)
    for code, text in every_pattern():
        known = failures()[code]
        context = example(known.only_if[0]) if known.only_if else ""
        found = [
            m.code for m in explain(f"E0101 12:00:00 x: {example(text)} and {context}").matches
        ]
        assert code in found or known.kind in NO_CLAIM, text
        assert found[0] in users[text] or known.kind != "cause", text


def ends_inside_a_word(condition: str, words: set[str]) -> bool:
    """Whether a condition begins or ends with what is known only as a part of longer words."""
    text = condition.lower()
    head, tail = re.match(r"[^\W_]+", text), re.search(r"[^\W_]+$", text)
    return bool(
        (head and head[0] not in words and any(word.endswith(head[0]) for word in words))
        or (tail and tail[0] not in words and any(word.startswith(tail[0]) for word in words))
    )


def test_a_condition_begins_and_ends_at_whole_words() -> None:
    texts = Path(__file__).parent / "explain_texts"
    lines = [path.read_text(encoding="utf-8") for path in texts.glob("*.txt")]
    lines += [text for _, text in every_pattern()]
    lines += [f"{known.title} {known.cause} {known.fix}" for known in failures().values()]
    words = set(re.findall(r"[^\W_]+", "\n".join(lines).lower()))
    assert ends_inside_a_word("profil", words)
    assert ends_inside_a_word("aggle", words)
    wrong = [
        (known.code, text)
        for known in failures().values()
        for text in (*known.only_if, *known.not_if)
        if ends_inside_a_word(text, words)
    ]
    assert wrong == [], "never matches: write the whole word, or `beginning…`"


def facts(name: str, start: str, end: str) -> str:
    path = shared() / "facts" / name
    if not path.is_file():
        pytest.skip(f"needs the facts in {path}")
    text = path.read_text(encoding="utf-8")
    return text[text.index(start) : text.index(end)]


def test_each_of_the_75_texts_of_the_facts_is_explained_by_its_own_code() -> None:
    section = facts("runtimes.md", "## 3. Failure", "## 4. Who")
    heads = re.findall(r"^\*\*(F\d\d)\*\* (?:✓ )?(.*)$", section, re.MULTILINE)
    assert len(heads) == 75
    wrong = [(code, first(head)) for code, head in heads if first(head) != code]
    assert wrong == []


def test_each_quoted_message_of_the_facts_is_explained_by_its_own_code() -> None:
    section = facts("runtimes.md", "## 3. Failure", "## 4. Who")
    wrong = []
    for code, head in re.findall(r"^\*\*(F\d\d)\*\* ✓ (`.*)$", section, re.MULTILINE):
        message = re.match(r"``?(.+?)``?(?: |$)", head)
        assert message
        if first(message[1]) != code:
            wrong.append((code, message[1], first(message[1])))
    assert wrong == []


SPELLINGS = {
    "jax.errors.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.": (
        "F66"
    ),
    "RESOURCE_EXHAUSTED: Attempting to allocate 2.00G. That was not possible. There are 1.5G "
    "free.": "F66",
    "RESOURCE_EXHAUSTED: Attempting to reserve 12.06G at the bottom of memory. That was not "
    "possible. There are 9.07G free.": "F66",
    "Out of memory while trying to allocate 68719476736 bytes.": "F66",
    "No module named tensorflow": "F27",
    "ImportError: No module named tensorflow.": "F27",
    "ModuleNotFoundError: No module named 'tensorflow'": "F27",
    'No module named "tensorflow"': "F27",
    "No module named ‘tensorflow’": "F27",
    "Unable to initialize backend tpu: something new": "F16",
    "AttributeError: module libtpu has no attribute get_library_path": "F20",
    "KeyError: COLAB_TPU_ADDR": "F40",
    "Failed to connect to 172.28.0.1:8353": "F11",
    "Failed to connect to ipv4:10.0.0.7:8353; deadline exceeded": "F11",
    "OSError: [Errno 16] Device or resource busy: '/dev/vfio/3'": "F05",
    "PermissionError: [Errno 1] Operation not permitted: '/dev/accel2'": "F04",
    "Couldnt open iommu group /dev/vfio/17": "F05",
    "Python 3.13 with libtpu 0.0.17": "F38",
    "Failed to recognize coordinator address 'local'": "F58",
    "ERROR: Could not find a version that satisfies the requirement libtpu==2.19.0": "F28",
    "NotFoundError: TPUs not found in the cluster.": "F31",
    "No module named 'tensorflow.keras.wrappers'": "tf_removed_api",
    "Out of memory: Killed process 4242 (python)": "host_oom",
    "Quota limit TPUV5sLitepodPerProjectPerZoneForTPUAPI has been exceeded.": "quota_exceeded",
    "_Could not find kaggle.json_ error": "kaggle_no_token",
}
NOTICE = (
    "INFO 12:00:00 xla_bridge.py:841] Unable to initialize backend 'tpu': INTERNAL: Failed to open "
    "libtpu.so: libtpu.so: cannot open shared object file: No such file or directory"
)
NO_FAILURES = (
    "No module named 'tensorflow_datasets'",
    "No module named tensorflow_hub",
    "No module named tensorflow-datasets",
    "Your disk quota limit is 100 GB",
    "Failed to connect to localhost:6006",
    "Device or resource busy: '/mnt/disk'",
    "has no attribute 'get_tpu_client_options'",
    "KeyError: 'health'",
    "Task 3 not found in the to-do list",
    "We use the slice builder pattern in Python",
    "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint users_pkey",
    "Python 3.11.9, jax built with libtpu 0.0.21",
)


@pytest.mark.parametrize(("text", "code"), SPELLINGS.items())
def test_numbers_devices_and_quotes_may_differ(text: str, code: str) -> None:
    assert first(text) == code


@pytest.mark.parametrize("text", NO_FAILURES)
def test_a_text_that_only_begins_like_a_failure_is_none(text: str) -> None:
    matches = explain(text).matches
    assert not any(match.matched and failures()[match.code].kind != "unknown" for match in matches)
    assert all(match.title.startswith("Not sure") for match in matches)


def test_a_harmless_warning_after_a_file_of_its_library_is_no_unknown_error() -> None:
    place = "/usr/lib/python3/site-packages/jax/_src/interpreters/mlir.py:790: UserWarning: "
    assert first(place + "Some donated buffers were not usable: f32[8]") == "donation_unused"
    assert first(place + "Some buffers were lost") != "donation_unused"


def test_the_words_of_a_harmless_line_are_no_failure_and_the_same_words_raised_are_one() -> None:
    assert [match.code for match in explain(NOTICE).matches] == ["jax_backend_probe"]
    raised = f"RuntimeError: {NOTICE.partition('] ')[2]} (set JAX_PLATFORMS='' to choose)"
    assert first(raised) == "F17"
    assert first(f"{NOTICE}\n{raised}") != "jax_backend_probe"


def test_the_last_exception_comes_before_the_notices_above_it() -> None:
    notices = (
        "INFO:absl:Unable to initialize backend 'tpu_driver': Not found: Unable to find driver\n"
        "INFO:absl:Unable to initialize backend 'gpu': Not found: Could not find platform: 'cuda'\n"
        "INFO:jax._src.xla_bridge:Unable to initialize backend 'rocm': module "
        "'jaxlib.xla_extension' has no attribute 'GpuAllocatorConfig'\n"
        "WARNING:root:CUDA error: no device, not used\n"
    )
    for raised, code in (
        ("KeyError: 'colour'", "unknown_value"),
        ("OSError: [Errno 24] Too many open files", "too_many_open_files"),
    ):
        assert first(f'{notices}Traceback:\n  File "train.py", line 3\n{raised}') == code
    assert first(notices.partition("WARNING")[0]) == "jax_backend_probe"


API = {
    'There is no more capacity in the zone "us-central2-b"; you can try in another': "no_capacity",
    "Insufficient reserved capacity. Contact customer support": "no_reserved_capacity",
    "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in "
    "region us-east5.": "quota_exceeded",
    "Quota 'TPUV4' exhausted. Limit 32 in zone us-central2-b": "quota_exceeded",
    "Quota exceeded for quota metric 'x' limit 'DeleteNode requests per minute'": "rate_limited",
    "update is not supported while in state PREEMPTED": "wrong_state",
    'CloudTpu received an invalid AcceleratorType, "v3-8" for zone "z".': "invalid_type",
    "Location us-east1-d is not found or access is unauthorized.": "zone_hidden",
    "Permission 'tpu.nodes.list' denied on 'projects/p'": "permission_denied",
    "Cloud TPU API has not been used in project 1 before or it is disabled. SERVICE_DISABLED": (
        "api_disabled"
    ),
    "ALREADY_EXISTS: Resource 'projects/p/locations/z/nodes/t' already exists": "already_exists",
    "unable to queue the operation": "queue_busy",
}


@pytest.mark.parametrize(("text", "code"), API.items())
def test_errors_of_the_cloud_tpu_api_are_explained(text: str, code: str) -> None:
    assert first(text) == code


def test_stockout_and_quota_share_a_code_and_get_opposite_advice() -> None:
    stockout = explain('code: 8 There is no more capacity in the zone "z"').matches
    quota = explain("code: 8 Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' exceeded").matches
    assert [match.code for match in stockout] == ["no_capacity"]
    assert [match.code for match in quota] == ["quota_exceeded"]
    assert "another zone" in stockout[0].fix
    assert "waiting does not help" in quota[0].cause


UNKNOWN = """Traceback (most recent call last):
  File "/lib/lightning/strategies/xla.py", line 8, in setup
    raise RuntimeError("No TPU devices were found. Use a TPU machine.")
{}frobnicate.GrumpyError: the frobnicator is not greased"""

COMMAND = """$ python train.py --note 'Ran out of memory in memory space hbm'
frobnicate.GrumpyError: the frobnicator is not greased"""


def test_a_cause_is_not_sure_if_threads_with_the_message_had_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = replace(failures()["F29"], kind="cause")
    two = (Pattern("No TPU platform found"), Pattern("Failed to find TPU"))

    def said(threads: dict[str, int], kind: str = "cause") -> str:
        monkeypatch.setattr(evidence, "threads_with", lambda code, words: threads)
        why = evidence.doubt(replace(known, kind=kind), two, aside=False, most=True)
        return f"{why.title} {why.reason}" if why else "sure"

    assert said({}) == said({"F29": 4, "F15": 1}) == "sure"
    assert "the cause in 3 of 4 known threads" in said({"F29": 3, "F15": 1})
    assert "the cause in 0 of 2 known threads" in said({"F15": 2})
    assert said({"F29": 9}, "wrapper").startswith("Not sure why")
    monkeypatch.setattr(
        evidence, "threads_with", lambda code, words: {"F15": 1} if "platform" in words else {}
    )
    assert evidence.causes_in_threads("F29", two) == (0, Counter())


def test_an_answer_that_is_not_sure_names_the_other_causes_to_rule_out() -> None:
    found = explain("RuntimeError: No TPU platform found")
    (match,) = found.matches
    assert match.title == f"Not sure, nearest known failure: {failures()['F29'].title}"
    assert "the cause in 1 of 2 known threads" in match.cause
    assert "F15" in {each.code for each in found.similar}
    page = " ".join(shown(render_explanation(found)).split())
    assert f"Other causes to rule out: tpuctl explain F15 {failures()['F15'].title}" in page
    assert failures()["F15"].cause[:40] in page


def test_an_unknown_flag_of_xla_is_named_whole() -> None:
    for flag in ("xla_latency_hiding_scheduler_rerun", "--xla_tpu_rerun", "megascale_port"):
        match = explain(f"ERROR: Unknown command line flag '{flag}'").matches[0]
        assert match.code == "unknown_xla_flag"
        assert f" {flag.removeprefix('--')}." in match.cause


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("googleapi: Error 409: the frob is busy, conflict", "gcp_status_409"),
        ("google.api_core.exceptions.FailedPrecondition: 400 the frob is green", "gcp_status_400"),
        ("ERROR: (gcloud.frob.create) RESOURCE_EXHAUSTED: no frobs", "gcp_status_429"),
        (
            '<HttpError 403 when requesting https://x.googleapis.com/y returned "no"',
            "gcp_status_403",
        ),
    ],
)
def test_an_unknown_error_of_google_cloud_is_told_by_its_status(text: str, code: str) -> None:
    families = [match for match in explain(text).matches if match.matched]
    assert families[0].code == code
    assert families[0].title.startswith("Not sure: ")


def test_an_unknown_call_names_the_library_that_makes_it() -> None:
    frame = '  File "/venv/site-packages/frobnicate/core.py", line 9, in go\n    quux.go(x=1)\n'
    (match,) = explain(f"{frame}TypeError: go() got an unexpected keyword argument 'x'").matches
    assert match.code == "api_mismatch"
    assert "The last library in the trace is frobnicate" in match.cause


def test_where_nothing_matches_the_exception_and_its_library_are_named() -> None:
    trace = """Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/frobnicate/core.py", line 9, in go
ValueError: the frobnicator is not greased"""
    explanation = explain(trace)
    (match,) = explanation.matches
    assert match.title.startswith("Not sure: ")
    assert "ValueError" in match.cause
    assert "frobnicate" in match.cause
    assert explanation.exit_code == 1


@pytest.mark.parametrize(
    ("text", "begins", "code"),
    [
        ("ERROR: [/usr/bin/ssh] exited with return code [255].", "Not sure why: ", "ssh_255"),
        ("Insufficient Permission", "Not sure why: ", "gcp_permission"),
        (f"No TPU platform found{' by me' * 9}", "Not sure, nearest known failure: ", "F29"),
        (COMMAND, "Not sure, nearest known failure: ", "F66"),
        (UNKNOWN.format(""), "Not sure, nearest known failure: ", "lightning_no_tpu"),
    ],
)
def test_thin_evidence_is_said_to_be_thin(text: str, begins: str, code: str) -> None:
    match = explain(text).matches[0]
    assert (match.code, match.confidence) == (code, "low")
    assert match.title == begins + failures()[code].title
    assert not match.cause.startswith(failures()[code].cause)


@pytest.mark.parametrize(
    ("api", "command"),
    [
        ("compute.googleapis.com", "compute.googleapis.com --project=my-project"),
        ("x;reboot", "API --project=my-project"),
    ],
)
def test_the_command_names_what_the_message_names_if_it_is_a_plain_word(
    api: str, command: str
) -> None:
    text = f"API [{api}] not enabled on project [my-project]. Would you like to enable and retry?"
    assert explain(text).matches[0].fix_command == f"gcloud services enable {command}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("_pickle.UnpicklingError: pickle data was truncated", "weights_pointer"),
        (
            "self = reduction.pickle.load(from_parent)\n"
            "_pickle.UnpicklingError: pickle data was truncated",
            "spawn_parent_died",
        ),
        (
            "Successfully uninstalled jax-0.3.25\nERROR: pip's dependency resolver does not "
            "currently take into account all the packages that are installed.\n"
            "ipython 7.9.0 requires jedi>=0.10, which is not installed.",
            "pip_changed_jax",
        ),
        (
            "grpc_tpu_driver.cc:1070] Failed to open the gRPC driver: 4: Deadline Exceeded\n"
            "WARNING:absl:No GPU/TPU found, falling back to CPU.",
            "tpu_driver_unreachable",
        ),
    ],
)
def test_what_a_message_follows_is_not_taken_for_what_it_mentions(text: str, code: str) -> None:
    assert explain(text).matches[0].code == code


@pytest.mark.parametrize(
    "text",
    [
        "ssh_255",
        "RuntimeError: No TPU devices were found. Use a TPU machine.",
        "Ran out of memory in memory space hbm. Used 18.4G of 15.75G hbm.",
    ],
)
def test_a_code_or_good_evidence_is_explained_without_a_doubt(text: str) -> None:
    match = explain(text).matches[0]
    assert match.title == failures()[match.code].title
    assert match.cause.startswith(failures()[match.code].cause)


def test_the_last_exception_comes_before_what_a_frame_says_and_after_what_it_wraps() -> None:
    frames = UNKNOWN.partition("{}")[0]
    known = explain(f"{frames}OSError: [Errno 24] Too many open files").matches
    assert [match.code for match in known] == ["too_many_open_files", "lightning_no_tpu"]
    wrapped = explain(f"{frames}RuntimeError: Engine core initialization failed").matches
    assert [match.code for match in wrapped] == ["lightning_no_tpu", "engine_core_wrapper"]


def test_a_wrapping_message_comes_after_what_it_wraps() -> None:
    text = (
        "RuntimeError: Unable to initialize backend 'tpu': INTERNAL: Failed to initialize TPU "
        "platform: No ba16c7433 device found. (you may need to uninstall the failing plugin "
        "package, or set JAX_PLATFORMS=cpu to skip this backend.)"
    )
    assert [match.code for match in explain(text).matches] == ["F08", "F16"]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mExpected 8 worker\n    addresses,\x1b[0m got 1.",
        "EXPECTED 8 WORKER ADDRESSES, GOT 1",
        "Expected `8` worker addresses, got `1`.",
    ],
)
def test_colours_line_breaks_letters_and_quotes_do_not_matter(text: str) -> None:
    assert first(text) == "F53"


@pytest.mark.slow
def test_a_log_of_megabytes_is_read_in_one_go() -> None:
    line = "I1120 12:00:00.000 python jax tpu loss=2.3 step 17 open(/dev/ VBAR Expected\n"
    log = line * 50_000 + "Couldn't open iommu group /dev/vfio/1\n" + line * 10
    explanation = explain(log)
    assert [match.code for match in explanation.matches] == ["F05"]
    assert explanation.characters == len(log)


@pytest.mark.parametrize("before", [0, 1, 20, 40])
def test_a_message_across_the_border_of_two_pieces_is_found(before: int) -> None:
    filler = "x" * ((1 << 22) - before)
    assert first(f"{filler} Expected 8 worker addresses, got 1.") == "F53"


def test_words_far_apart_are_not_one_message() -> None:
    assert first("Expected " + "x" * 2000 + " worker addresses") is None
    assert first("open(/dev/accel0): Operation not permitted") == "F04"
    assert first("open(/dev/accel0) " + "fine " * 200 + "Operation not permitted") is None


@settings(max_examples=100, deadline=None)
@given(st.text())
@hypothesis.example("QueuedResources")
def test_any_text_is_explained_or_refused(text: str) -> None:
    try:
        explanation = explain(text)
    except InvalidInputError:
        assert not text.replace("`", "").replace("*", "").split() or "\x1b" in text
    except NotFoundError:
        assert len(text.split()) == 1
    else:
        # Similar words alone, and the name of an exception, claim nothing.
        matched = {match.code for match in explanation.matches if match.matched}
        is_known = any(failures()[code].kind != "unknown" for code in matched)
        assert explanation.exit_code == (0 if is_known else 1)


def test_the_command_reads_arguments_files_codes_and_stdin(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff\x00\xfe Ran out of memory in memory space hbm. \x80")
    assert tpuctl("explain", "--json", log).data["matches"][0]["code"] == "F66"
    assert tpuctl("explain", "--json", "f66").data["matches"][0]["code"] == "F66"
    words = ("Ran", "out", "of", "memory", "in", "memory", "space", "hbm")
    assert tpuctl("explain", "--json", *words).data["matches"][0]["code"] == "F66"
    piped = tpuctl("explain", "--json", input="Unsupported nprocs (8). Please use nprocs=1")
    match = piped.data["matches"][0]
    assert {"code", "title", "cause", "fix", "fix_command", "confidence", "source"} <= set(match)
    assert match["code"] == "F51"


def test_without_any_standard_input_the_text_is_missed() -> None:
    code = "import sys; sys.stdin = None; from tpuctl.cli.app import app; app(['explain'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert "No text to explain" in result.stderr


def test_nothing_found_is_exit_1_and_nothing_given_is_wrong_usage(
    tpuctl: Callable[..., Any], tmp_path: Path
) -> None:
    nothing = tpuctl("explain", "--json", "all is well")
    assert (nothing.exit_code, nothing.data["matches"]) == (1, [])
    for empty in (
        tpuctl("explain", "--json", input=" \n"),
        tpuctl("explain", "--json", input=""),
        tpuctl("explain", "--json", "", input=""),
        tpuctl("explain", "--json", " "),
    ):
        (error,) = empty.document["errors"]
        assert (empty.exit_code, error["code"]) == (2, "usage")
        assert "python train.py 2>&1 | tpuctl explain" in error["hint"]
    (tmp_path / "empty.log").touch()
    assert tpuctl("explain", tmp_path / "empty.log").exit_code == 1


@pytest.mark.parametrize(
    ("code", "near"),
    [
        ("F999", "F75"),
        ("f76", "F75"),
        ("F5", "F05"),
        ("T999", "T4"),
        ("orbax_exist", "orbax_exists"),
    ],
)
def test_an_unknown_code_names_the_codes_nearby(
    tpuctl: Callable[..., Any], code: str, near: str
) -> None:
    unknown = tpuctl("explain", "--json", code)
    (error,) = unknown.document["errors"]
    assert (unknown.exit_code, error["code"]) == (1, "not_found")
    assert f"Unknown code {code}" in error["message"]
    assert near in error["hint"]


@pytest.mark.parametrize("text", ["my_variable_zzq", "F", "F12345678901", "X12", "T", "F９９"])
def test_a_word_like_no_code_is_a_text_without_a_match(text: str) -> None:
    assert explain(text).matches == ()


def test_an_empty_standard_input_is_wrong_usage() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tpuctl", "explain"], stdin=subprocess.DEVNULL, capture_output=True
    )
    assert result.returncode == 2
    assert b"2>&1 | tpuctl explain" in result.stderr


def test_a_text_without_a_match_names_the_most_similar_failure_and_is_not_sure() -> None:
    found = explain("the slice builder lost worker 3")
    assert found.exit_code == 1
    (match,) = found.matches
    assert (match.code, match.confidence, match.matched) == ("slice_builder", "low", "")
    assert match.title.startswith("Not sure, most similar known failure: ")
    assert match.cause.startswith("No known message matches")
    page = shown(render_explanation(found))
    assert "confidence low" in page
    assert "Not sure" in page


def test_failures_that_are_less_similar_are_only_listed() -> None:
    found = explain("heartbeat of a task was late")
    assert (found.exit_code, found.matches) == (1, ())
    assert {each.confidence for each in found.similar} == {"low"}
    page = shown(render_explanation(found))
    assert "No known failure matches" in page
    assert f"tpuctl explain {found.similar[0].code}" in page


def test_a_known_message_needs_no_similar_failures() -> None:
    found = explain("Ran out of memory in memory space hbm. Used 18.4G of 15.75G hbm.")
    assert found.matches[0].matched
    assert not found.similar


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("ValueError: workers must be greater than 0", "workers must be greater than 0"),
        ("a.b.FooError: 3 bars. Try a longer\nwait_s.\n", "Try a longer wait_s."),
        (
            'FooError: no foo.\nYou can fix this with\n"ulimit -n 9".',
            'You can fix this with "ulimit -n 9".',
        ),
        ("FooError: the foo is late\nHINT: raise its limit_s", "HINT: raise its limit_s"),
        ("foo failed (3), please remove the bars", "foo failed (3), please remove the bars"),
        ("Did you forget a bar?\nFooError: no bar. Use bar_2 instead.", "Use bar_2 instead."),
        ("FooError: broken. Please report this bug to us.", None),
        ("FooError: broken. Please see our website for help.", None),
        ("step 1 loss 3.5\nWARNING: please use the other foo\nFooError: broken", None),
    ],
)
def test_an_answer_that_is_not_sure_repeats_what_the_message_advises(
    text: str, advice: str | None
) -> None:
    found = explain(text)
    assert found.advice == advice
    assert ("The message says what to do: " in shown(render_explanation(found))) == bool(advice)


def test_a_sure_answer_repeats_no_advice_of_the_message() -> None:
    text = "Ran out of memory in memory space hbm. Used 18.4G of 15.75G hbm. Please use less."
    assert explain(text).advice is None


@pytest.mark.parametrize(
    "text",
    [
        "sqlite3.OperationalError: no such table: users",
        "zipfile.BadZipFile: Bad magic number for central directory",
        "ValueError: time data '2024' does not match format '%d'",
        "scipy.linalg.LinAlgError: 2-th leading minor of the array is not positive definite",
        "django.db.utils.IntegrityError: UNIQUE constraint failed: shop_order.number",
        "error[E0382]: borrow of moved value: `name`",
        "The quick brown fox jumps over the lazy dog.",
    ],
)
def test_texts_about_something_else_resemble_nothing(text: str) -> None:
    found = explain(text)
    assert all(match.matched for match in found.matches)
    assert not found.similar


@pytest.mark.parametrize("end", ["Killed", "Killed: 9\n", "Killed one"])
def test_what_a_shell_says_of_a_killed_program_is_a_line_of_its_own(end: str) -> None:
    found = explain(f"epoch 1: loss 0.3\n{end}").matches
    assert [each.code for each in found] == ["process_killed"] * (end != "Killed one")


def test_only_the_end_of_a_log_is_compared_and_no_words_that_are_far_apart() -> None:
    message = "the slice builder lost its grpc channel"
    # Words of no failure.
    rest = [f"qzv{number} " * 20 for number in range(40)]
    assert explain("\n".join([*rest, message])).matches[0].code == "slice_builder"
    assert not explain("\n".join([message, *rest])).matches
    apart = "\n".join(f"{word}\n{' '.join(rest[:5])}" for word in message.split())
    assert not explain(apart).matches
