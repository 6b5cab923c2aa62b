"""The emulator as a whole: one world behind a gRPC and an HTTP port on loopback."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpuctl.clock import Clock
from tpuctl.emulator.http import Face, Reply, Route
from tpuctl.emulator.machines import Machines, ticking
from tpuctl.emulator.metadata import metadata_face
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.service import Emulator as Emulator
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World
from tpuctl.errors import InvalidInputError, MissingExtraError


class PortTakenError(InvalidInputError):
    """Another process listens on the port."""


@contextmanager
def serve(
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    folder: Path | None = None,
    machines: Path | None = None,
    port: int = 0,
) -> Iterator[Emulator]:
    """Run an emulator on loopback, in threads of this process, while the block runs.

    With a `folder` it resumes the last emulator there. With a folder for `machines` every worker
    is one that SSH reaches. Raises MissingExtraError, PortTakenError.
    """
    plan = scenario if isinstance(scenario, Scenario) else parse_scenario(dict(scenario or {}))
    store = Store(folder) if folder else None
    world = open_world(plan, store, clock)
    with serve_world(
        world, clock=clock, store=store, ports=[(port, 0)], machines=machines
    ) as emulator:
        yield emulator


@contextmanager
def serve_world(
    world: World,
    *,
    clock: Clock,
    store: Store | None,
    ports: Sequence[tuple[int, int]],
    machines: Path | None = None,
) -> Iterator[Emulator]:
    """Serve a world on the first pair of ports (gRPC, HTTP) that is free; 0 is any port."""
    emulator = Emulator(world, clock, store)
    with ExitStack() as stack:
        folder = store.storage if store else Path(stack.enter_context(TemporaryDirectory()))
        for index, pair in enumerate(ports):
            try:
                stack.enter_context(_listening(emulator, folder, *pair))
                break
            except PortTakenError:
                if index == len(ports) - 1:
                    raise
        if machines:
            stack.enter_context(_running_machines(emulator, machines))
        yield emulator


@contextmanager
def _running_machines(emulator: Emulator, folder: Path) -> Iterator[None]:
    """Run a machine for every worker; without the extra `ssh` they exist in the API only."""
    try:
        emulator.machines = machines = Machines(folder, emulator.http)
    except ModuleNotFoundError:
        yield
        return
    try:
        with ticking(emulator.advance):
            yield
    finally:
        emulator.machines = None
        machines.close()


def open_world(scenario: Scenario, store: Store | None, clock: Clock) -> World:
    """Resume the world of a store, or create one."""
    if store and store.has_world:
        return store.resume()
    seed, now = secrets.token_hex(8), clock.now()
    if store:
        return store.create(scenario, seed=seed, now=now)
    return World(scenario, seed=seed, now=now)


@contextmanager
def _listening(emulator: Emulator, folder: Path, port: int, http_port: int) -> Iterator[None]:
    try:
        from tpuctl.emulator._grpc import serve_grpc
        from tpuctl.emulator._rest import tpu_face
        from tpuctl.emulator.http_server import serve_http
        from tpuctl.emulator.storage.api import storage_face
    except ImportError as error:
        raise MissingExtraError("The emulator", extra="gcp", module=str(error.name)) from error
    server, bound = serve_grpc(emulator, port=port)
    if not bound:
        raise _taken(port)
    status = Route("GET /emulator/status", lambda _: Reply(document=emulator.status()))
    faces = [
        tpu_face(emulator),
        metadata_face(emulator),
        storage_face(emulator, folder),
        Face(("/emulator/",), [status]),
    ]
    try:
        web = serve_http(emulator, faces, port=http_port)
    except OSError as error:
        server.stop(grace=None).wait()
        raise _taken(http_port) from error
    emulator.endpoint = f"127.0.0.1:{bound}"
    emulator.http = f"http://127.0.0.1:{web.server_address[1]}"
    try:
        yield
    finally:
        web.shutdown()
        web.server_close()
        server.stop(grace=None).wait()


def _taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"Could not listen on 127.0.0.1:{port}: the port is in use.",
        hint="Choose another port, or 0 for any that is free.",
    )
