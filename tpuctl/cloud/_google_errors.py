"""From the exceptions of Google's libraries to faults, and so to our errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import google.auth.exceptions
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.rpc import error_details_pb2, status_pb2

from tpuctl.cloud.faults import Asked, Fault, translate
from tpuctl.errors import NotLoggedInError, TpuctlError

UNKNOWN, UNAVAILABLE = 2, 14
LOGIN_COMMAND = "gcloud auth application-default login"


@contextmanager
def translated_errors(asked: Asked) -> Iterator[None]:
    """Let nothing of Google's escape: whatever is raised inside becomes a TpuctlError.

    The cause is cut off: it repeats the service's words, with whatever secrets are in them.
    """
    try:
        yield
    except GoogleAPICallError as error:
        raise translate(_fault_of_call(error), asked) from None
    except google.auth.exceptions.TransportError as error:
        raise translate(Fault(UNAVAILABLE, str(error)), asked) from None
    except google.auth.exceptions.GoogleAuthError as error:
        message = f"{asked.doing}: the login on this machine does not work: {_first_line(error)}"
        raise NotLoggedInError(message, hint=LOGIN_COMMAND) from None
    except requests.exceptions.RequestException as error:
        raise translate(Fault(UNAVAILABLE, _first_line(error)), asked) from None


def error_of_status(status: status_pb2.Status, asked: Asked) -> TpuctlError:
    """Translate the error that ended an operation."""
    details = [_unpacked(detail) for detail in status.details]
    return translate(_fault(status.code, status.message, details, in_operation=True), asked)


def _fault_of_call(error: GoogleAPICallError) -> Fault:
    code = error.grpc_status_code.value[0] if error.grpc_status_code else UNKNOWN
    return _fault(code, error.message or "", error.details or [])


def _fault(code: int, message: str, details: list[Any], *, in_operation: bool = False) -> Fault:
    reason, service, violations, retry_after_s = "", "", [], None
    for detail in details:
        if isinstance(detail, error_details_pb2.ErrorInfo):
            reason, service = detail.reason, detail.metadata.get("service", "")
        elif isinstance(detail, error_details_pb2.QuotaFailure):
            violations += [violation.description for violation in detail.violations]
        elif isinstance(detail, error_details_pb2.RetryInfo):
            retry_after_s = detail.retry_delay.ToTimedelta().total_seconds()
    return Fault(code, message, reason, service, tuple(violations), retry_after_s, in_operation)


def _unpacked(detail: Any) -> Any:
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.QuotaFailure,
        error_details_pb2.RetryInfo,
    ):
        message = kind()
        if detail.Unpack(message):
            return message
    return detail


def _first_line(error: Exception) -> str:
    return str(error.args[0] if error.args else error).partition("\n")[0]
