"""The emulator as a whole: one world behind a gRPC and an HTTP port on loopback."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpuctl.clock import Clock
from tpuctl.emulator.desk import FrontDesk
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.service import Emulator as Emulator
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World
from tpuctl.errors import InvalidInputError, MissingExtraError


@contextmanager
def serve(
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    folder: Path | None = None,
    port: int = 0,
    http_port: int = 0,
) -> Iterator[Emulator]:
    """Run an emulator on loopback, in threads of this process, for as long as the block lasts.

    With a folder it goes on from where the last one in that folder ended, however it ended.
    Raises MissingExtraError, and InvalidInputError for a port that is taken.
    """
    plan = scenario if isinstance(scenario, Scenario) else parse_scenario(dict(scenario or {}))
    store = Store(folder) if folder else None
    emulator = Emulator(open_world(plan, store, clock), clock, store)
    with _faces(emulator, port, http_port):
        yield emulator


def open_world(scenario: Scenario, store: Store | None, clock: Clock) -> World:
    """Go on with the world of a store, or begin one."""
    if store and store.has_world:
        return store.resume()
    seed, now = secrets.token_hex(8), clock.now()
    if store:
        return store.begin(scenario, seed=seed, now=now)
    return World(scenario, seed=seed, now=now)


@contextmanager
def _faces(emulator: Emulator, port: int, http_port: int) -> Iterator[None]:
    try:
        from tpuctl.emulator._grpc import serve_grpc
        from tpuctl.emulator._rest import serve_rest
    except ImportError as error:
        raise MissingExtraError("The emulator", extra="gcp", module=str(error.name)) from error
    server, bound = serve_grpc(emulator.answer, emulator.headers, port=port)
    if not bound:
        raise _taken(port)
    try:
        rest = serve_rest(FrontDesk(emulator), port=http_port)
    except OSError as error:
        server.stop(grace=None).wait()
        raise _taken(http_port) from error
    emulator.endpoint = f"127.0.0.1:{bound}"
    emulator.http = f"http://127.0.0.1:{rest.server_address[1]}"
    try:
        yield
    finally:
        rest.shutdown()
        rest.server_close()
        server.stop(grace=None).wait()


def _taken(port: int) -> InvalidInputError:
    return InvalidInputError(
        f"Could not listen on 127.0.0.1:{port}: the port is taken.",
        hint="Choose another one, or 0 for any that is free.",
    )
