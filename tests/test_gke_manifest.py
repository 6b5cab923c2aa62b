"""The JobSet of a job: against the schemas of others, and the rules that no schema has."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.providers.gke.manifest import (
    GkeOptions,
    JobSetSpec,
    check,
    check_type,
    facts,
    job_set,
    name_for,
)

yaml = pytest.importorskip("yaml")
to_yaml = pytest.importorskip("tpuctl.providers.gke._kubeconfig").to_yaml

ROOT = Path(__file__).parents[1]
VENDORED: dict[str, Any] = json.loads(
    (ROOT / "tpuctl/emulator/data/jobset_schema.json").read_bytes()
)
TYPES = ("v5e-1", "v5e-8", "v5e-16", "v6e-4", "v6e-16", "v6e-256", "v5p-8", "v5p-128", "v4-16",
         "tpu7x-2", "tpu7x-8", "tpu7x-32")  # fmt: skip


def strict(schema: Any) -> Any:
    """The same schema, which also refuses what it does not list, as the API server does."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not is_open:
        made.setdefault("additionalProperties", False)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


SCHEMA = strict(VENDORED["schema"])


@cache
def validator() -> Any:
    kind = jsonschema.validators.validator_for(SCHEMA)
    kind.check_schema(SCHEMA)
    return kind(SCHEMA)


def spec(
    type: str = "v6e-16", slices: int = 1, limit_s: float | None = None, **more: Any
) -> JobSetSpec:
    options = GkeOptions(type, num_slices=slices, **more)
    archive = ("bucket", "jobs/tpuctl/x.tar.gz", "0" * 64)
    return JobSetSpec(
        "train-1a2b3c", check_type(options), options, archive, "key", "train.py", limit_s
    )


def every() -> Iterator[JobSetSpec]:
    for each in TYPES:
        yield spec(each)
    yield spec(slices=2, kueue="queue", limit_s=3600.0)
    yield spec(flex=True, kueue="queue", env={"A": "x\ny", "B": "'#: {}"}, max_restarts=0)
    yield spec(spot=True, image="python:3.12", slices=4, type="v5p-128")


SPECS = tuple(every())


@pytest.mark.parametrize("made", SPECS, ids=lambda made: made.kind.accelerator_type)
def test_a_manifest_matches_the_schema_of_jobset_made_strict(made: JobSetSpec) -> None:
    validator().validate(job_set(made))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "failurePolicy", "maxRestart"), 3),
        (("spec", "failurePolicy", "rules", 0, "action"), "Restart"),
        (("spec", "failurePolicy", "rules", 0, "name"), None),
        (("spec", "replicatedJobs", 0, "template", "spec", "paralelism"), 4),
        (("spec", "replicatedJobs", 0, "template", "spec", "parallelism"), "4"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "nodeSelctor"), {}),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0,
          "comand"), []),
    ],
)  # fmt: skip
def test_the_schema_notices(path: tuple[Any, ...], value: Any) -> None:
    made = deepcopy(job_set(SPECS[0]))
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(made)


@pytest.mark.parametrize("made", SPECS, ids=lambda made: made.kind.accelerator_type)
def test_the_job_inside_is_one_for_kubernetes(made: JobSetSpec) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    inner = job_set(made)["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": inner}
    validate.validate(job, "1.33", strict=True)
    job["spec"] = {**inner, "completionMod": "Indexed"}
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.33", strict=True)


def test_what_a_multislice_job_asks_for() -> None:
    made = job_set(spec(slices=2, kueue="team", limit_s=7200.0, max_restarts=5))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    exclusive = made["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert exclusive == "cloud.google.com/gke-nodepool"
    policy = made["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 5
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"]),
        ("FailJobSet", ["DeadlineExceeded"]),
    ]
    (group,) = made["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    assert (group["replicas"], job["parallelism"], job["completions"]) == (2, 4, 4)
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 7200)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert (pod["restartPolicy"], pod["hostNetwork"]) == ("Never", True)
    limits = pod["containers"][0]["resources"]
    assert limits == {"limits": {"google.com/tpu": 4}, "requests": {"google.com/tpu": 4}}
    # GKE injects these; a value of ours would be in its way.
    assert pod["containers"][0]["env"] == []
    assert made["spec"]["ttlSecondsAfterFinished"] == 86400


@pytest.mark.parametrize(
    ("options", "label", "tolerated"),
    [
        ({"spot": True}, "cloud.google.com/gke-spot", "cloud.google.com/gke-spot"),
        ({"flex": True}, "cloud.google.com/gke-flex-start", "cloud.google.com/gke-queued"),
    ],
)
def test_spot_and_flex_choose_their_nodes(options: Any, label: str, tolerated: str) -> None:
    made = job_set(spec(**options))
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"][label] == "true"
    assert tolerated in [each["key"] for each in pod["tolerations"]]


def test_flex_in_a_queue_says_how_long_it_needs_its_nodes() -> None:
    key = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
    noted = [job_set(made)["metadata"]["annotations"].get(key) for made in (
        spec(flex=True, kueue="q", limit_s=600.0), spec(flex=True, kueue="q"), spec(flex=True)
    )]  # fmt: skip
    assert noted == ["600", str(facts()["flex_most_s"]), None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accelerator_type": None}, "Which TPU"),
        ({"accelerator_type": "v3-8"}, "GKE does not have v3-8"),
        ({"accelerator_type": "v6e-8", "num_slices": 2}, "v6e-8 is one host"),
        ({"accelerator_type": "v6e-8", "spot": True, "flex": True}, "--spot and --flex"),
    ],
)
def test_a_type_that_cannot_be_is_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_type(GkeOptions(**options))


def broken(**changes: Any) -> dict[str, Any]:
    made = deepcopy(job_set(spec(slices=2)))
    job = made["spec"]["replicatedJobs"][0]
    made["metadata"]["name"] = changes.get("name", "train")
    job["replicas"] = changes.get("replicas", 2)
    job["template"]["spec"]["parallelism"] = changes.get("parallelism", 4)
    pod = job["template"]["spec"]["template"]["spec"]
    pod["restartPolicy"] = changes.get("restart", "Never")
    pod["containers"][0]["env"] = [{"name": changes.get("variable", "A"), "value": ""}]
    made["spec"]["failurePolicy"]["rules"] += changes.get("rules", [])
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Train"}, {"name": "1train"}, {"name": "tr_ain"}, {"name": "train-"}, {"name": ""},
        {"name": "t" * 48}, {"replicas": 0}, {"replicas": 2**30, "parallelism": 4},
        {"restart": "OnFailure"}, {"variable": "A-B"}, {"variable": "1A"}, {"variable": ""},
        {"rules": [{"name": "disruption"}]}, {"rules": [{"name": "a-b"}]},
        {"rules": [{"name": ""}]},
    ],
)  # fmt: skip
def test_what_the_webhook_refuses_is_refused_here(changes: Any) -> None:
    check(broken())
    check(broken(name="t" * 47))
    with pytest.raises(UsageError):
        check(broken(**changes))


@given(st.text(max_size=80), st.integers(1, 999), st.integers(1, 9999))
def test_a_name_from_any_script_is_valid(stem: str, slices: int, nodes: int) -> None:
    made = broken(name=name_for(stem, "a1b2c3", slices, nodes), replicas=slices, parallelism=nodes)
    check(made)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["yes", "null", "1", "1e3", "0x1f", "~", "-", "- a", "a: b", "# x", "a\nb\n", "\n", " a\n",
     "a\n\n", "2026-11-22", "=", "<<", "1_000", "012", "!tag", "&a", "*a", "|", ">", "%", "@", "`",
     "\t", "a\r\nb\n"]
)  # fmt: skip
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(DATA)
def test_a_reader_of_yaml_reads_what_was_written(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        to_yaml({"a": "\ud800"})
