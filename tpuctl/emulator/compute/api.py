"""compute.v1 over HTTP."""

import json
import time
from datetime import timedelta
from functools import partial

from tpuctl.emulator.compute.methods import COMPUTE_METHODS, ComputeMethod
from tpuctl.emulator.compute.resources import GLOBAL
from tpuctl.emulator.compute.validate import check_form
from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.errors import compute_error, load_data
from tpuctl.emulator.http import HttpApi, Reply, Request, Route, is_standard
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Key
from tpuctl.emulator.service import Emulator

PREFIX = "/compute/"
_LARGEST_BODY = 16 << 20
_LONGEST_WAIT = timedelta(minutes=2)
_POLL_S = 0.01
_SCOPES = {CLOUD_SCOPE, "https://www.googleapis.com/auth/compute"}
_READ_SCOPE = "https://www.googleapis.com/auth/compute.readonly"


def compute_api(emulator: Emulator) -> HttpApi:
    """Serve Compute Engine; methods of v1 are available in beta too."""
    routes = []
    for method in COMPUTE_METHODS.values():
        verb, _, path = method.rule.partition(" ")
        rule = f"{verb} /compute/{{version}}/projects/{{project}}{path}"
        routes.append(Route(rule, partial(_answer, emulator, method)))
    return HttpApi((PREFIX,), routes, compute_error)


def _answer(emulator: Emulator, method: ComputeMethod, request: Request) -> Reply:
    _check_scope(emulator, method, request)
    names = request.names
    body: Document = {key: text for key, text in request.query.items() if not is_standard(key)}
    if method.starts_operation:
        body["resource"] = check_form(_read_body(request), _form(method))
    zone = names.get("zone") or (GLOBAL if method.scope == "global" else "")
    if method.verb == "aggregatedList":
        zone = "-"
    name = names.get("name") or names.get("group") or str(body.get("resource", {}).get("name", ""))
    call = Call(method.name, names["project"], zone, name, body)
    answer = emulator.answer(call)
    if method.verb == "wait":
        _wait(emulator, call)
        answer = emulator.answer(call)
    return Reply(document=answer)


def _form(method: ComputeMethod) -> Document:
    """Return the form of a request's body, limited to the fields used here."""
    forms = load_data("compute")["forms"]
    form: Document = forms.get(method.verb) or forms.get(method.collection, {})
    if "Templates" in method.collection:
        return {"name": "", "properties": forms["instances"]}
    return form


def _wait(emulator: Emulator, call: Call) -> None:
    """Return when the operation is done, after two minutes, or at once if the clock is stopped."""
    before = emulator.now()
    while True:
        operation = emulator.advance().compute.operations.get(Key.of(call))
        time.sleep(_POLL_S)
        now = emulator.now()
        if not operation or operation.done or now == before or now >= before + _LONGEST_WAIT:
            return


def _check_scope(emulator: Emulator, method: ComputeMethod, request: Request) -> None:
    """Raise ComputeError for a token without the scope; the secret allows everything."""
    if not (authorization := request.headers.get("Authorization", "")):
        return
    scopes = emulator.scopes(authorization)
    if scopes is None:
        raise compute_error("unauthenticated")
    allowed = _SCOPES | (set() if method.starts_operation else {_READ_SCOPE})
    if not allowed & set(scopes):
        raise compute_error("scope")


def _read_body(request: Request) -> Document:
    try:
        document = json.loads(request.body.read(_LARGEST_BODY) or b"{}")
    except (ValueError, RecursionError) as error:
        raise compute_error("bad_request", why=f"Parse Error: {error}") from error
    if document == "":  # From Google's client for Node, for a method without a body.
        return {}
    if not isinstance(document, dict):
        raise compute_error("bad_request", why="Parse Error: the body must be an object.")
    return document
