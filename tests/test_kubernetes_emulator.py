"""The emulated cluster, by plain requests: policies, schedules, and errors as the real API's."""

import json
import urllib.error
import urllib.parse
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.gke_world import Clusters
from tests.gke_world import cluster as cluster
from tests.waiting import wait_until
from tpuctl.emulator.http import ByteFault, ConnectionCut
from tpuctl.emulator.kubernetes.objects import kube_error

JOBSETS = "apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "api/v1/namespaces/default/pods"
ONE = {"node_pools": [{"accelerator_type": "v6e-1"}]}


class Api:
    """Requests to the cluster that the environment points to."""

    def __init__(self, http: str) -> None:
        self._root = f"{http}/kubernetes/"

    def __call__(
        self,
        verb: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        accept: str = "",
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._root + path, data, {"Content-Type": kind, "Accept": accept}, method=verb
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
        is_log = "/log" in path and not text.startswith(b"{")
        return text.decode() if is_log else json.loads(text)

    def ended(self, name: str = "job") -> dict[str, Any]:
        """Wait until a JobSet has ended."""
        found: dict[str, Any] = {}

        def is_over() -> bool:
            found.update(self("GET", f"{JOBSETS}/{name}").get("status", {}))
            return "terminalState" in found

        wait_until(is_over)
        return found


@pytest.fixture
def api(cluster: Clusters) -> Any:
    def start(gke: dict[str, Any] | None = None, **more: Any) -> Api:
        return Api(cluster(gke or ONE, **more).emulator.http)

    return start


def job_set(*command: str, name: str = "job", policy: Any = None, **spec: Any) -> dict[str, Any]:
    chips = {"limits": {"google.com/tpu": 1}}
    container = {
        "name": "main",
        "image": "x",
        "command": list(command or ("true",)),
        "resources": chips,
    }
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    job = {
        "parallelism": 1, "completions": 1, "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [disrupted]}]},
    }  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
        "spec": {**({"failurePolicy": policy} if policy else {}), **spec,
                 "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}]},
    }  # fmt: skip


FREE = {
    "name": "free", "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
}  # fmt: skip


def test_a_job_runs_and_its_log_stays(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set("sh", "-c", "echo one; echo two >&2"))
    assert call.ended()["terminalState"] == "Completed"
    (pod,) = call("GET", PODS)["items"]
    place = f"{PODS}/{pod['metadata']['name']}/log"
    assert call("GET", place) == "one\ntwo\n"
    assert call("GET", f"{place}?tailLines=1") == "two\n"
    stamped = call("GET", f"{place}?timestamps=true").splitlines()
    assert [line.partition(" ")[2] for line in stamped] == ["one", "two"]
    assert call("GET", f"{place}?container=other")["code"] == 400
    assert pod["spec"]["nodeName"] == "gke-tpu-pool-0-0"
    reasons = [each["reason"] for each in call("GET", "api/v1/namespaces/default/events")["items"]]
    assert reasons == ["AllJobsCompleted"]


def test_a_job_that_has_ended_is_deleted_after_its_time(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set(ttlSecondsAfterFinished=60))
    wait_until(lambda: call("GET", f"{JOBSETS}/job").get("code") == 404)
    assert call("GET", PODS)["items"] == []


@pytest.mark.parametrize(
    ("policy", "state", "restarts"),
    [
        (None, "FailedJobs", 0),
        ({"maxRestarts": 0}, "ReachedMaxRestarts", 0),
        ({"maxRestarts": 2}, "ReachedMaxRestarts", 2),
        (
            {"maxRestarts": 2, "rules": [{"action": "FailJobSet"}]},
            "FailJobSetFailurePolicyAction",
            0,
        ),
        ({"maxRestarts": 1, "rules": [FREE]}, "ReachedMaxRestarts", 1),
    ],
)
def test_a_crash_follows_the_failure_policy(
    api: Any, policy: Any, state: str, restarts: int
) -> None:
    call = api()
    call("POST", JOBSETS, job_set("sh", "-c", "exit 9", policy=policy))
    status = call.ended()
    assert (status["conditions"][-1]["reason"], status["restarts"]) == (state, restarts)
    (pod,) = call("GET", PODS)["items"]
    (container,) = pod["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 9


def test_a_preemption_is_a_disruption_and_free(api: Any) -> None:
    call = api({**ONE, "preemptions": [{"slice": 0}]})
    nap = "trap 'exit 143' TERM; sleep 0.4 & wait"
    call("POST", JOBSETS, job_set("sh", "-c", nap, policy={"maxRestarts": 0, "rules": [FREE]}))
    status = call.ended()
    assert status["terminalState"] == "Completed"
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)


def test_a_job_waits_for_nodes_and_says_so(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set("sleep", "600", name="first"))
    wait_until(lambda: call("GET", PODS)["items"])
    call("POST", JOBSETS, job_set(name="second"))

    def waits() -> bool:
        found = call("GET", f"{PODS}?labelSelector=jobset.sigs.k8s.io/jobset-name=second")["items"]
        return bool(found) and found[0]["status"]["conditions"][0]["reason"] == "Unschedulable"

    wait_until(waits)
    change = {"spec": {"suspend": True}}
    call("PATCH", f"{JOBSETS}/first", change, "application/merge-patch+json")
    assert call.ended("second")["terminalState"] == "Completed"


def test_a_job_that_fails_before_its_pods_have_started_frees_its_nodes(api: Any) -> None:
    call = api({**ONE, "start_s": 3600})
    late = job_set(name="late", policy={"maxRestarts": 0})
    late["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 60
    call("POST", JOBSETS, late)
    assert call.ended("late")["terminalState"] == "Failed"
    assert call("GET", PODS)["items"] == []


def test_a_resumed_job_runs(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set(suspend=True))
    wait_until(lambda: call("GET", f"{JOBSETS}/job").get("status", {}).get("conditions"))
    assert call("GET", PODS)["items"] == []
    merge = "application/merge-patch+json"
    call("PATCH", f"{JOBSETS}/job", {"spec": {"suspend": False}}, merge)
    assert call.ended()["terminalState"] == "Completed"


@pytest.mark.parametrize(
    ("path", "value", "code", "said"),
    [
        (("spec", "suspnd"), True, 400, 'unknown field "spec.suspnd"'),
        (("spec", "failurePolicy"), {"maxRestarts": "3"}, 422, "must be of type integer"),
        (("spec", "ttlSecondsAfterFinished"), -1, 422, "at least 0"),
        (("spec", "successPolicy"), {"operator": "Some"}, 422, "Unsupported value"),
        (("metadata", "name"), "j" * 60, 422, "DNS-1035"),
        (("metadata", "name"), "j" * 54, 422, "too long"),
        (("metadata", "nme"), "j", 400, "unknown field"),
        (("spec", "failurePolicy"), {"rules": [FREE, FREE]}, 422, "not unique"),
        (("spec", "coordinator"), {"replicatedJob": "w"}, 422, "does not support coordinator"),
        (("metadata", "namespace"), "other", 400, "does not match"),
    ],
)
def test_a_wrong_job_is_refused_as_the_real_api_does(
    api: Any, path: tuple[str, str], value: Any, code: int, said: str
) -> None:
    call, made = api(), deepcopy(job_set())
    made[path[0]][path[1]] = value
    answer = call("POST", f"{JOBSETS}?fieldValidation=Strict", made)
    assert (answer["kind"], answer["code"]) == ("Status", code)
    assert said in answer["message"]
    assert call("GET", JOBSETS)["items"] == []


def test_what_may_not_change_does_not(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set("sleep", "600"))
    assert call("POST", JOBSETS, job_set())["reason"] == "AlreadyExists"
    merge, policy = "application/merge-patch+json", {"failurePolicy": {"maxRestarts": 9}}
    assert "immutable" in call("PATCH", f"{JOBSETS}/job", {"spec": policy}, merge)["message"]
    wrong = {"preconditions": {"uid": "another"}}
    assert call("DELETE", f"{JOBSETS}/job", wrong)["code"] == 409
    assert call("DELETE", f"{JOBSETS}/job")["status"] == "Success"
    assert call("DELETE", f"{JOBSETS}/job")["code"] == 404


@pytest.mark.parametrize(
    ("verb", "path"),
    [("GET", "apis/apps/v1"), ("GET", "api/v1/namespaces/default/secrets"),
     ("POST", "api/v1/nodes"), ("DELETE", "api/v1/nodes/gke-tpu-pool-0-0"),
     ("POST", PODS), ("GET", "nowhere")],
)  # fmt: skip
def test_what_the_emulator_does_not_have_is_not_found(api: Any, verb: str, path: str) -> None:
    answer = api()(verb, path, {} if verb == "POST" else None)
    assert (answer["kind"], answer["code"]) == ("Status", 404)


def test_a_body_that_is_no_object_is_refused(api: Any) -> None:
    call = api()
    bodies: list[Any] = [[], "x", {"metadata": []}, {"metadata": {"name": 3}}, {}]
    for body in bodies:
        assert call("POST", JOBSETS, body)["kind"] == "Status"


def test_discovery_also_answers_with_a_slash_at_the_end(api: Any) -> None:
    call = api()
    for path in ("version", "api", "apis", "api/v1", "apis/batch", "apis/batch/v1"):
        found = call("GET", f"{path}/")
        assert found == call("GET", path)
        assert found.get("kind") != "Status"


def test_the_type_of_a_reply_has_no_charset(cluster: Clusters) -> None:
    root = f"{cluster(ONE).emulator.http}/kubernetes"
    with urllib.request.urlopen(f"{root}/{PODS}", timeout=30) as reply:
        assert reply.headers["Content-Type"] == "application/json"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{root}/{PODS}/none", timeout=30)
    with caught.value as reply:
        assert reply.headers["Content-Type"] == "application/json"


def test_labels_are_selected_from_sets(api: Any) -> None:
    call, key = api(), "cloud.google.com/gke-tpu-topology"
    for selector, count in {
        f"{key} in (1x1, 2x2)": 1,
        f"{key} in (2x2,4x4),x notin (a)": 0,
        f"{key},{key} notin (2x2,4x4), !x": 1,
        f"{key} = 1x1 , x != a": 1,
        "x in (a)": 0,
    }.items():
        found = call("GET", f"api/v1/nodes?labelSelector={urllib.parse.quote(selector)}")
        assert len(found["items"]) == count, selector


def test_a_patch_of_another_kind_is_refused(api: Any) -> None:
    call = api()
    call("POST", JOBSETS, job_set())
    strategic = "application/strategic-merge-patch+json"
    found = call("PATCH", f"{JOBSETS}/job", {"metadata": {"labels": {"a": "b"}}}, strategic)
    assert (found["code"], found["reason"]) == (415, "UnsupportedMediaType")


def test_a_watch_that_resumes_does_not_see_a_deletion_again(cluster: Clusters) -> None:
    http = cluster(ONE).emulator.http
    call, since = Api(http), Api(http)("GET", JOBSETS)["metadata"]["resourceVersion"]
    call("POST", JOBSETS, job_set())
    call("DELETE", f"{JOBSETS}/job")

    def changes(since: str) -> list[Any]:
        # Clients in Python write True.
        query = f"watch=True&timeoutSeconds=0.3&resourceVersion={since}"
        with urllib.request.urlopen(f"{http}/kubernetes/{JOBSETS}?{query}", timeout=30) as reply:
            return [json.loads(line) for line in reply]

    last = changes(since)[-1]
    assert last["type"] == "DELETED"
    assert changes(last["object"]["metadata"]["resourceVersion"]) == []


def test_jobs_outlive_the_emulator_and_what_ran_starts_again(
    cluster: Clusters, tmp_path: Path
) -> None:
    from tests.conftest import EMULATOR_TOKEN
    from tests.gke_world import SCALE
    from tpuctl.clock import WallClock
    from tpuctl.emulator.server import serve

    scenario, place = {"time_scale": SCALE, "gke": {**ONE, "start_s": 0}}, tmp_path / "kept"
    for attempt in (0, 1):
        with serve(scenario, clock=WallClock(), folder=place, secret=EMULATOR_TOKEN) as emulator:
            call = Api(emulator.http)
            if attempt == 0:
                call("POST", JOBSETS, job_set("sleep", "600"))
            wait_until(lambda: call("GET", PODS)["items"])  # noqa: B023
            assert call("GET", f"{JOBSETS}/job")["status"]["restarts"] == attempt
            wait_until(lambda: (place / "storage" / "kubernetes" / "jobsets.json").exists())


def test_only_who_knows_the_secret_is_answered(api: Any) -> None:
    call = api()
    call._root = call._root.replace("only-the-tests-know-this/", "")
    assert call("GET", "version")["code"] == 401


def test_a_stream_that_is_cut_at_its_start_does_not_look_ended() -> None:
    """A piece of nothing would be sent as the last chunk."""
    with pytest.raises(ConnectionCut):
        next(ByteFault("cut", 0, 0).apply(b"x", 0))
    assert kube_error("rate_limit").http_headers["Retry-After"] == "1"


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def rows(api: Api, path: str) -> list[dict[str, str]]:
    """What kubectl prints of a list."""
    found = api("GET", path, accept=TABLE)
    names = [column["name"] for column in found["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in found["rows"]]


def test_kubectl_gets_tables_with_the_state_of_each_object(api: Any) -> None:
    api = api()
    api("POST", JOBSETS, job_set())
    api.ended()
    (pod,), (node,) = rows(api, PODS), rows(api, "api/v1/nodes")
    assert (pod["Ready"], pod["Status"], pod["Node"]) == ("0/1", "Completed", node["Name"])
    assert (node["Status"], node["Version"][:2]) == ("Ready", "v1")
    assert len(api("GET", "api/v1/nodes")["items"][0]["status"]["nodeInfo"]) == 10  # All required.
    (ended,), (job,) = rows(api, JOBSETS), rows(api, "apis/batch/v1/jobs")
    assert (ended["TerminalState"], ended["Restarts"], ended["Completed"]) == (
        "Completed", "0", "True",
    )  # fmt: skip
    assert (job["Status"], job["Completions"]) == ("Complete", "1/1")
    assert rows(api, f"{JOBSETS}/job")[0]["Name"] == "job"
    assert rows(api, "api/v1/events")[0]["Object"] == "jobset/job"
    row = api("GET", f"{PODS}?includeObject=Object", accept=TABLE)["rows"][0]["object"]
    state = row["status"]["containerStatuses"][0]["state"]["terminated"]
    times = (state["startedAt"], state["finishedAt"], row["status"]["startTime"])
    assert [len(time) for time in times] == [len("2026-11-27T06:37:18Z")] * 3


def test_labels_are_selected_by_sets_of_values(api: Any) -> None:
    api = api()
    path = "api/v1/nodes?labelSelector=cloud.google.com/gke-tpu-topology%20"
    for selector, count in (("in%20(2x2,1x1)", 1), ("notin%20(1x1)", 0), ("in%20(2x2)", 0)):
        assert len(api("GET", path + selector)["items"]) == count


def test_a_job_set_is_changed_by_json_patches_and_replaced(api: Any) -> None:
    api = api()
    old = api("POST", JOBSETS, {**job_set(), "metadata": {"name": "job", "labels": {"a": "b"}}})
    operations = [
        {"op": "test", "path": "/metadata/name", "value": "job"},
        {"op": "add", "path": "/metadata/labels/x~1y", "value": "z"},
        {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"},
    ]
    patch = "application/json-patch+json"
    new = api("PATCH", f"{JOBSETS}/job", operations, patch)
    assert new["metadata"]["labels"] == {"x/y": "z", "c": "b"}
    for path in ("/metadata/labels/none", "/metadata/name/x", 5):
        wrong = [{"op": "remove", "path": path}]
        assert api("PATCH", f"{JOBSETS}/job", wrong, patch)["code"] == 422
    assert api("PUT", f"{JOBSETS}/job", old)["reason"] == "Conflict"
    new = api("GET", f"{JOBSETS}/job")
    del new["metadata"]["labels"], new["metadata"]["resourceVersion"], new["metadata"]["uid"]
    replaced = api("PUT", f"{JOBSETS}/job", new)
    assert ("labels" in replaced["metadata"], replaced["metadata"]["uid"]) == (
        False, old["metadata"]["uid"],
    )  # fmt: skip
    new["spec"]["replicatedJobs"] = []
    assert "immutable" in api("PUT", f"{JOBSETS}/job", new)["message"]


def test_kubectl_explains_a_job_set(api: Any) -> None:
    api = api()
    found = api("GET", "openapi/v3/apis/jobset.x-k8s.io/v1alpha2")
    schema = found["components"]["schemas"]["JobSet"]
    assert schema["x-kubernetes-group-version-kind"][0]["kind"] == "JobSet"
    assert "replicatedJobs" in schema["properties"]["spec"]["properties"]
    assert "image" in found["$defs"]["container"]["properties"]
    assert "Pod" in api("GET", "openapi/v3/api/v1")["components"]["schemas"]


def test_kubectl_knows_the_short_names_of_objects(api: Any) -> None:
    found = {each["name"]: each for each in api()("GET", "api/v1")["resources"]}
    assert found["pods"]["shortNames"] == ["po"]
    assert found["pods"]["categories"] == ["all"]
