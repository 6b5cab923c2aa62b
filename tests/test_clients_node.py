"""Google's and Kubernetes' clients for Node, unmodified, with the emulator (make test-clients)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import VERSION, Target, emulator_for_clients, need

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

SCENARIO = """{
  "time_scale": 2000, "buckets": {"photos": {"location": "us-central1"}},
  "zones": {"us-central1-a": {"types": ["v5litepod-8"]},
            "us-east5-b": {"machine_types": ["ct6e-standard-4t"], "capacity_chips": 64}}
}"""
PACKAGES = Path(f"{sys.prefix}-node")

# What the clients of google-gax need to send the secret: REST with a token, gRPC with a header.
GAX = f"""
import fs from 'fs'; import {{createRequire}} from 'module';
const place = new URL(process.env.TPUCTL_GCE_ENDPOINT);
const token = fs.readFileSync(process.env.TPUCTL_TPU_TOKEN_FILE, 'utf8');
const nodeVersion = '{VERSION}', project = 'practice';
const here = createRequire(import.meta.url);
const of = (name, ...on) => on.reduce((at, next) => createRequire(at.resolve(next)), here)(name);
const rest = client => {{
  const {{OAuth2Client}} = of('google-auth-library', client, 'google-gax');
  const authClient = new OAuth2Client();
  authClient.setCredentials({{access_token: token, expiry_date: Date.now() + 1e9}});
  return {{fallback: true, protocol: 'http', apiEndpoint: place.hostname, port: +place.port,
          authClient, projectId: project}};
}};
const grpc = client => {{
  const [apiEndpoint, port] = process.env.TPUCTL_TPU_ENDPOINT.split(':');
  const {{credentials}} = of('@grpc/grpc-js', client, 'google-gax');
  return {{apiEndpoint, port: +port, sslCreds: credentials.createInsecure(), projectId: project}};
}};
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with emulator_for_clients(tmp_path_factory.mktemp("clients"), SCENARIO) as found:
        yield found


def node(target: Target, package: str, program: str) -> Any:
    """Run a program in the folder with the packages; returns what it passes to `done`."""
    need("node")
    if not (PACKAGES / "node_modules" / package).is_dir():
        pytest.skip(f"{package} is not installed in {PACKAGES} (make test-clients)")
    done = (
        "const done = found => { console.log(`\\n${JSON.stringify(found)}`); process.exit(); };\n"
    )
    run = ("node", "--no-warnings", "--input-type=module", "-e", done + program)
    return json.loads(target.run("env", "-C", str(PACKAGES), *run).splitlines()[-1])


def test_google_cloud_storage(target: Target) -> None:
    program = """
import {Storage} from '@google-cloud/storage'; import {Readable} from 'stream';
import {pipeline} from 'stream/promises';
const storage = new Storage({projectId: 'practice'}), bucket = storage.bucket('photos');
const big = Buffer.alloc((5 << 20) + 1, 'x'), refused = found => found.catch(error => error.code);
await bucket.file('n/one').save('hello', {resumable: false, metadata: {metadata: {a: 'b'}}});
await bucket.file('n/big').save(big, {resumable: true});
await bucket.file('n/chunks').save(big, {resumable: true, chunkSize: 1 << 20});
await bucket.file('n/empty').save('', {resumable: true});
await pipeline(Readable.from([big, big]), bucket.file('n/stream').createWriteStream());
await bucket.combine(['n/one', 'n/one'], 'n/two');
await bucket.file('n/two').copy('n/d/three');
await bucket.file('n/d/three').setMetadata({contentType: 'a/b'});
const [part] = await bucket.file('n/two').download({start: 3, end: 6});
const [, , listed] = await bucket.getFiles({prefix: 'n/', delimiter: '/', autoPaginate: false});
const sizes = [];
for await (const file of bucket.getFilesStream({prefix: 'n/'})) sizes.push(+file.metadata.size);
const existing = {resumable: false, preconditionOpts: {ifGenerationMatch: 0}};
const codes = [await refused(bucket.file('n/one').save('', existing)),
               await refused(bucket.setMetadata({labels: {a: 'b'}}, {ifMetagenerationMatch: 9}))];
await bucket.deleteFiles({prefix: 'n/'});
done([`${part}`, listed.prefixes, sizes, codes, (await bucket.getFiles())[0]]);
"""
    big = (5 << 20) + 1
    sizes = [big, big, 10, 0, 5, 2 * big, 10]
    found = node(target, "@google-cloud/storage", program)
    assert found == ["lohe", ["n/d/"], sizes, [412, 412], []]


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_google_cloud_tpu(target: Target, version: str, transport: str) -> None:
    program = f"""{GAX}
import tpu from '@google-cloud/tpu';
const client = new tpu.{version}.TpuClient({transport}('@google-cloud/tpu'));
const headers = {{authorization: `Bearer ${{token}}`}};
const how = '{transport}' === 'grpc' ? {{otherArgs: {{headers}}}} : {{}};
const parent = 'projects/practice/locations/us-central1-a', name = `${{parent}}/nodes/t1`;
const wait = async ([operation]) => (await operation.promise())[0];
const wanted = {{acceleratorType: 'v5litepod-8', runtimeVersion: nodeVersion}};
const made = await wait(await client.createNode({{parent, nodeId: 't1', node: wanted}}, how));
const stopped = await wait(await client.stopNode({{name}}, how));
const [listed] = await client.listNodes({{parent}}, how);
await wait(await client.deleteNode({{name}}, how));
const code = await client.getNode({{name}}, how).catch(error => error.code);
done([made.state, stopped.state, listed.length, code]);
"""
    assert node(target, "@google-cloud/tpu", program) == [2, 8, 1, 5]


def test_google_cloud_compute(target: Target) -> None:
    program = f"""{GAX}
import compute from '@google-cloud/compute';
const how = rest('@google-cloud/compute'), at = {{project, zone: 'us-east5-b'}};
const instances = new compute.InstancesClient(how), waits = new compute.ZoneOperationsClient(how);
const wait = async ([{{latestResponse: {{name}}}}]) => {{
  for (;;) if ((await waits.wait({{...at, operation: name}}))[0].status === 'DONE') return;
}};
const machineType = 'zones/us-east5-b/machineTypes/ct6e-standard-4t', instance = 'v1';
await wait(await instances.insert({{...at, instanceResource: {{name: instance, machineType}}}}));
await wait(await instances.stop({{...at, instance}}));
const [found] = await instances.get({{...at, instance}});
await wait(await instances.delete({{...at, instance}}));
done([found.status, (await instances.list(at))[0].length]);
"""
    assert node(target, "@google-cloud/compute", program) == ["TERMINATED", 0]


def test_googleapis(target: Target) -> None:
    program = f"""{GAX}
import {{google}} from 'googleapis'; import {{Readable}} from 'stream';
const rootUrl = `${{place.origin}}/`, auth = new google.auth.OAuth2();
auth.setCredentials({{access_token: token}});
const parent = 'projects/practice/locations/us-central1-a', types = [];
for (const version of ['v1', 'v2', 'v2alpha1']) {{
  const {{projects}} = google.tpu({{version, auth, rootUrl}});
  const {{data}} = await projects.locations.acceleratorTypes.list({{parent}});
  types.push(data.acceleratorTypes.length);
}}
const {{data}} = await google.compute({{version: 'v1', auth, rootUrl}}).zones.list({{project}});
const {{objects}} = google.storage({{version: 'v1', auth, rootUrl}}), object = 'a b';
const media = {{mimeType: 'text/plain', body: Readable.from(['he', 'llo'])}};
const insert = {{bucket: 'photos', requestBody: {{name: object}}, media}};
await objects.insert(insert, {{rootUrl}});
const got = await objects.get({{bucket: 'photos', object, alt: 'media'}});
await objects.delete({{bucket: 'photos', object}});
done([types, data.items.length, got.data]);
"""
    assert node(target, "googleapis", program) == [[1, 1, 1], 2, "hello"]


def test_the_client_of_kubernetes(target: Target) -> None:
    chips = {"limits": {"google.com/tpu": 8}}
    container = {"name": "main", "image": "x", "command": ["echo", "hello"], "resources": chips}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    replicated = {"name": "w", "template": {"spec": {"template": pod}}}
    spec = {"replicatedJobs": [replicated]}
    meta = {"name": "by-node", "labels": {"a": "b"}}
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    body = {**kind, "metadata": meta, "spec": spec}
    program = f"""
import * as k8s from '@kubernetes/client-node';
const config = new k8s.KubeConfig(); config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api), body = {json.dumps(body)};
const custom = config.makeApiClient(k8s.CustomObjectsApi), namespace = 'default';
const sets = {{group: 'jobset.x-k8s.io', version: 'v1alpha2', namespace, plural: 'jobsets'}};
await custom.createNamespacedCustomObject({{...sets, body}});
const one = {{...sets, name: 'by-node'}};
const labelSelector = 'jobset.sigs.k8s.io/jobset-name in (by-node)';
const change = [{{op: 'add', path: '/metadata/labels/c', value: 'd'}}];
const patched = await custom.patchNamespacedCustomObject({{...one, body: change}});
const pod = await new Promise((found, failed) => new k8s.Watch(config).watch(
  '/api/v1/namespaces/default/pods', {{labelSelector, resourceVersion: '1'}},
  (_, pod) => pod.status.phase === 'Succeeded' && found(pod.metadata.name), failed));
const log = await core.readNamespacedPodLog({{name: pod, namespace}});
await custom.deleteNamespacedCustomObject(one);
done([patched.metadata.labels, log, (await core.listNode()).items.length]);
"""
    found = node(target, "@kubernetes/client-node", program)
    assert found == [{"a": "b", "c": "d"}, "hello\n", 9]
