"""What the service's errors mean: every code, every text that was seen, every detail."""

import re

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.cloud.error_table import (
    LONGEST_MESSAGE,
    Fault,
    RequestContext,
    error_classes,
    load_table,
    translate,
)
from tpuctl.errors import RateLimitedError, TpuctlError, TryAgainError

ASKED = RequestContext("Could not create TPU t1 in us-east5-a", "my-project", "us-east5-a", "t1")
TABLE = load_table()
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
RESOURCE_EXHAUSTED, PERMISSION_DENIED = 8, 7


def code_of(code: int, message: str = "", **more) -> str:
    return translate(Fault(code, message, **more), ASKED).code


def test_the_table_has_the_sixteen_codes_of_grpc_and_no_other() -> None:
    ours = [(line["number"], line["name"]) for line in TABLE["codes"]]
    assert ours == [(code.value[0], code.name) for code in CODES]
    assert len(ours) == 16


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
@pytest.mark.parametrize("in_operation", [False, True])
def test_every_code_has_a_meaning_without_any_text(
    code: grpc.StatusCode, in_operation: bool
) -> None:
    error = translate(Fault(code.value[0], "", in_operation=in_operation), ASKED)
    assert str(error).startswith("Could not create TPU t1 in us-east5-a: ")
    assert error.exit_code == (3 if isinstance(error, TryAgainError) else 1)


def test_a_code_that_does_not_exist_yet_is_still_an_error_of_ours() -> None:
    assert code_of(99, "new") == "error"


@pytest.mark.parametrize("line", TABLE["texts"], ids=lambda line: line["example"][:50])
def test_every_text_means_what_its_line_says(line) -> None:
    in_operation = line.get("where") == "operation"
    for code in line.get("codes", [2, 10, 14]):
        fault = Fault(code, line["example"], in_operation=in_operation)
        error = translate(fault, ASKED)
        assert error.code == line["error"]
        assert error.hint == line["hint"].format(
            project="my-project", zone="us-east5-a", name="t1", service="tpu.googleapis.com"
        )
        assert line["example"][:40] in str(error)


def test_a_text_decides_only_for_its_own_codes() -> None:
    texts = [line for line in TABLE["texts"] if line["text"] and line.get("codes")]
    elsewhere = [code_of(5, line["example"]) for line in texts if 5 not in line["codes"]]
    assert set(elsewhere) == {"not_found"}


def test_every_line_names_an_error_that_exists_and_a_source() -> None:
    for line in (*TABLE["texts"], *TABLE["codes"]):
        assert line["error"] in error_classes()
    assert all(line["source"] and line["example"] for line in TABLE["texts"])
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", TABLE["as_of"])


@pytest.mark.parametrize(
    ("expected", "code", "message"),
    [
        ("no_capacity", 8, 'There is no more capacity in the zone "us-central1-a"; you can try'),
        ("quota_exceeded", 8, "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has "
         "been exceeded. Limit: 0 in region us-east5."),
        ("quota_exceeded", 8, "Quota 'TPUV2sPodPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in "
         "zone europe-west4-a"),
        ("rate_limited", 8, "Quota exceeded for quota metric 'x' and limit 'DeleteNode requests "
         "per minute' of service 'tpu.googleapis.com'"),
        ("rate_limited", 8, "Maximum number of CreateNode requests per minute"),
        ("wrong_state", 3, "Cloud TPU received a bad request. update is not supported while in "
         "state PREEMPTED"),
        ("invalid", 3, 'CloudTpu received an invalid AcceleratorType, "v3-8" for zone "z". Valid '
         'values are "v2-8, ".'),
        ("invalid", 3, 'the accelerator v5litepod-8 could not be found in the zonal accelerator '
         "configurations for us-central1-b"),
        ("no_capacity", 9, "Insufficient reserved capacity. Contact customer support"),
        ("zone_hidden", 7, "Location us-east1-d is not found or access is unauthorized."),
        ("zone_hidden", 7, "Permission denied on 'locations/us-central2-b' (or it may not exist)."),
        ("permission_denied", 7, "Permission 'tpu.nodes.list' denied on 'projects/p'"),
        ("api_disabled", 7, "Cloud TPU API has not been used in project 1 before or it is "
         "disabled"),
        ("not_found", 5, "Resource 'projects/p/locations/z/nodes/t1' was not found"),
        ("already_exists", 6, "Resource 'projects/p/locations/z/nodes/t1' already exists"),
        ("try_again", 10, "unable to queue the operation"),
        ("unavailable", 13, "Internal error. Please try again. [EID: 0x1]"),
        ("unavailable", 14, "The service is currently unavailable."),
        ("unavailable", 4, "Deadline Exceeded"),
        ("not_logged_in", 16, "Request had invalid authentication credentials."),
    ],
)  # fmt: skip
def test_the_texts_that_users_saw(expected: str, code: int, message: str) -> None:
    assert code_of(code, message) == expected


def test_code_8_without_a_word_is_capacity_in_an_operation_and_rate_in_a_reply() -> None:
    assert code_of(RESOURCE_EXHAUSTED, in_operation=True) == "no_capacity"
    assert code_of(RESOURCE_EXHAUSTED) == "rate_limited"


def test_details_decide_where_the_text_says_nothing() -> None:
    assert code_of(8, "Resource exhausted.", violations=("Limit 32 in zone z",)) == "quota_exceeded"
    assert code_of(8, "Quota exceeded.", reason="RATE_LIMIT_EXCEEDED") == "rate_limited"
    assert code_of(7, "Denied.", reason="SERVICE_DISABLED") == "api_disabled"
    assert code_of(7, "Denied.", reason="SOMETHING_ELSE") == "permission_denied"


def test_a_disabled_service_is_switched_on_by_its_own_name() -> None:
    fault = Fault(7, "", reason="SERVICE_DISABLED", service="cloudquotas.googleapis.com")
    hint = translate(fault, ASKED).hint
    assert hint == "gcloud services enable cloudquotas.googleapis.com --project=my-project"


def test_what_the_service_asks_us_to_wait_is_passed_on() -> None:
    error = translate(Fault(8, "", reason="RATE_LIMIT_EXCEEDED", retry_after_s=17.0), ASKED)
    assert isinstance(error, RateLimitedError)
    assert error.retry_after_s == 17.0


@pytest.mark.parametrize(
    "secret",
    [
        "ya29.a0AfH6SMBx-secret_token",
        "AIzaSyA1234567890abcdefghijklmnopqrs",
        "https://user:hunter2pass@host/x",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADAN\n-----END PRIVATE KEY-----",
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhIn0.c2ln",
    ],
)
def test_a_secret_in_the_services_words_goes_no_further(secret: str) -> None:
    error = translate(Fault(3, f"bad value {secret} in metadata"), ASKED)
    shown = f"{error} {error.hint}"
    words = [word for word in re.split(r"[\s/@:]+", secret) if len(word) > 5]
    leaked = [word for word in words if word in shown and word not in ("https", "PRIVATE")]
    assert words
    assert leaked == []
    assert "bad value" in shown


def test_the_id_of_a_quota_is_no_secret() -> None:
    quota = "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI"
    assert quota in str(translate(Fault(8, f"Quota limit '{quota}' has been exceeded."), ASKED))


def test_control_characters_and_endless_words_do_not_reach_a_terminal() -> None:
    message = "\x1b[31mred\x1b[0m\n\ttwo\u202e lines\x00 " + "word " * 1000
    shown = str(translate(Fault(13, message), ASKED))
    assert all(character.isprintable() for character in shown)
    assert len(shown) < LONGEST_MESSAGE + 100
    assert "[31mred [0m two lines word" in shown


@given(st.integers(), st.text(), st.text(), st.lists(st.text()), st.booleans())
def test_whatever_comes_becomes_an_error_of_ours(
    code: int, message: str, reason: str, violations: list[str], in_operation: bool
) -> None:
    fault = Fault(code, message, reason, "", tuple(violations), None, in_operation)
    error = translate(fault, ASKED)
    assert isinstance(error, TpuctlError)
    assert str(error).isprintable()
