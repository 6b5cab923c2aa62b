"""Run the emulator in this process, with a gRPC and an HTTP port on loopback."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tpuctl.clock import Clock
from tpuctl.codec import to_plain
from tpuctl.emulator.http import HttpApi, Reply, Route
from tpuctl.emulator.machines import Machines, ticking
from tpuctl.emulator.metadata import answer_probe, metadata_api
from tpuctl.emulator.multipart import batch_api
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.service import Emulator as Emulator
from tpuctl.emulator.service import Store
from tpuctl.emulator.world import World
from tpuctl.errors import InvalidInputError, MissingExtraError

TOKEN_FILE = "TPUCTL_TPU_TOKEN_FILE"  # noqa: S105 (a variable's name)


@contextmanager
def serve(
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    folder: Path | None = None,
    machines: Path | None = None,
    port: int = 0,
    secret: str | None = None,
) -> Iterator[Emulator]:
    """Run an emulator on loopback, in threads of this process, while the block runs.

    With a `folder`, it resumes the last emulator there. With a folder for `machines`, every
    worker accepts SSH. Clients must send the secret: by default that in the file named by
    TPUCTL_TPU_TOKEN_FILE, otherwise a new one. Raises MissingExtraError, or InvalidInputError if
    the port is in use.
    """
    if secret is None:
        named = os.environ.get(TOKEN_FILE)
        secret = Path(named).read_text(encoding="ascii") if named else secrets.token_hex(32)
    plan = scenario if isinstance(scenario, Scenario) else parse_scenario(dict(scenario or {}))
    store, seed = Store(folder) if folder else None, secrets.token_hex(8)
    if store is None:
        world = World(plan, seed=seed, now=clock.now())
    elif store.has_world:
        world = store.resume()
    else:
        world = store.create(plan, seed=seed, now=clock.now())
    with serve_world(
        world, clock=clock, store=store, secret=secret, ports=[(port, 0)], machines=machines
    ) as emulator:
        yield emulator


@contextmanager
def serve_world(
    world: World,
    *,
    clock: Clock,
    store: Store | None,
    secret: str | None,
    ports: Sequence[tuple[int, int]],
    machines: Path | None = None,
) -> Iterator[Emulator]:
    """Serve a world on the first free pair of ports (gRPC, HTTP); 0 means any port.

    Without a secret, anyone on this machine can use it, and run commands as its user.
    """
    emulator = Emulator(world, clock, store, secret)
    with ExitStack() as stack:
        folder = store.storage if store else Path(stack.enter_context(TemporaryDirectory()))
        for index, pair in enumerate(ports):
            try:
                stack.enter_context(_listening(emulator, folder, *pair))
                break
            except InvalidInputError:
                if index == len(ports) - 1:
                    raise
        if machines:
            stack.enter_context(_running_machines(emulator, machines))
            stack.enter_context(_running_colab(emulator, folder))
        yield emulator


@contextmanager
def _running_machines(emulator: Emulator, folder: Path) -> Iterator[None]:
    """Run a machine for every worker; without the extra `ssh`, they exist only in the API."""
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


@contextmanager
def _running_colab(emulator: Emulator, folder: Path) -> Iterator[None]:
    """Serve Colab on its own port, if the extra `ssh` is installed."""
    try:
        from tpuctl.emulator.colab._server import serve_colab
    except ModuleNotFoundError:
        yield
        return
    scenario, secret = emulator.scenario, emulator.secret
    with serve_colab(
        scenario.colab, clock=emulator.clock, folder=folder / "colab", secret=secret,
        scale=scenario.time_scale,
    ) as colab:  # fmt: skip
        emulator.colab = colab.url
        yield


@contextmanager
def _listening(emulator: Emulator, folder: Path, port: int, http_port: int) -> Iterator[None]:
    try:
        from tpuctl.emulator._grpc import serve_grpc
        from tpuctl.emulator._rest import tpu_api
        from tpuctl.emulator.compute.api import compute_api
        from tpuctl.emulator.http_server import serve_http
        from tpuctl.emulator.kaggle.api import KaggleApi
        from tpuctl.emulator.kubernetes.api import KubernetesApi
        from tpuctl.emulator.storage.api import storage_apis
    except ImportError as error:
        raise MissingExtraError("The emulator", extra="gcp", module=str(error.name)) from error
    with ExitStack() as stack:
        server, bound = serve_grpc(emulator, port=port)
        if not bound:
            raise _port_in_use(port)
        stack.callback(lambda: server.stop(grace=None).wait())
        status = Route("GET /emulator/status", lambda _: Reply(document=emulator.status()))
        bill = Route(
            "GET /emulator/bill", lambda _: Reply(document={"charges": to_plain(emulator.bill())})
        )
        greeting = Route("GET /", answer_probe)
        storage, any_path = storage_apis(emulator, folder)
        kaggle = KaggleApi(emulator, folder / "kaggle")
        stack.callback(kaggle.sessions.close)
        emulator.cluster = cluster = KubernetesApi(emulator, folder / "kubernetes")
        stack.callback(cluster.close)
        apis = [
            kaggle.http_api(),
            cluster.http_api(),
            tpu_api(emulator),
            compute_api(emulator),
            metadata_api(emulator),
            storage,
            HttpApi(("/emulator/",), [status, bill]),
        ]
        apis += [
            batch_api(list(apis)),
            HttpApi(("/",), [greeting, *any_path.routes], any_path.error),
        ]
        try:
            web = serve_http(emulator, apis, port=http_port)
        except OSError as error:
            raise _port_in_use(http_port) from error
        stack.callback(web.server_close)
        stack.callback(web.shutdown)
        emulator.endpoint = f"127.0.0.1:{bound}"
        path = f"/{emulator.secret}" if emulator.secret else ""
        emulator.http = f"http://127.0.0.1:{web.server_address[1]}{path}"
        yield


def exports(emulator: Emulator, token_file: str) -> dict[str, str]:
    """Return the variables that point tpuctl, Google's libraries and others to an emulator."""
    project = emulator.scenario.project or "practice"
    place = f"http://{urlsplit(emulator.http).netloc}"
    has_secret = emulator.secret is not None
    login = {"ACCESS_TOKEN_FILE": token_file} if has_secret else {"DISABLE_CREDENTIALS": "true"}
    return {
        "TPUCTL_TPU_ENDPOINT": emulator.endpoint,
        **({TOKEN_FILE: token_file} if has_secret else {}),
        "TPUCTL_PROJECT": project,
        "STORAGE_EMULATOR_HOST": emulator.http,
        "TPUCTL_GCE_ENDPOINT": emulator.http,
        **({"TPUCTL_COLAB_ENDPOINT": emulator.colab} if emulator.colab else {}),
        "TPUCTL_KAGGLE_ENDPOINT": emulator.http,
        "KUBECONFIG": str(Path(token_file).with_name("kubeconfig")),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{place}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{place}/compute/v1/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{place}/storage/v1/",
        **{f"CLOUDSDK_AUTH_{name}": value for name, value in login.items()},
        "CLOUDSDK_CORE_PROJECT": project,
        "TENSORSTORE_GCS_HTTP_URL": emulator.http,
        # Otherwise gcsfs tries gRPC with TLS for a minute in each operation.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def _port_in_use(port: int) -> InvalidInputError:
    return InvalidInputError(
        f"Could not listen on 127.0.0.1:{port}: the port is in use.",
        hint="Choose another port, or 0 for any free one.",
    )
