"""The JobSet of a job: what GKE has to schedule, where, and how often it restarts it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.errors import UsageError
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.units import slug

DATA = Path(__file__).parent / "data" / "gke.json"
API = "jobset.x-k8s.io/v1alpha2"
SLICE = "slice"
GOOGLE = "cloud.google.com"
ACCELERATOR = f"{GOOGLE}/gke-tpu-accelerator"
TOPOLOGY = f"{GOOGLE}/gke-tpu-topology"
NODE_POOL = f"{GOOGLE}/gke-nodepool"
QUEUE = "kueue.x-k8s.io/queue-name"
OURS = "app.kubernetes.io/managed-by"
TYPE = "tpuctl.dev/accelerator-type"
PROVISIONING = "tpuctl.dev/provisioning"
KEY = "tpuctl.dev/key"
CODE = "tpuctl.dev/code"
NODES = "tpuctl.dev/nodes-per-slice"
_WORK = "/workspace"
_KEPT_S = 86400
_LONGEST = 63
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_MAX_PODS = 2**31 - 1


def facts() -> dict[str, Any]:
    """Return the dated facts about TPUs on GKE."""
    return load_facts(DATA)


@dataclass(frozen=True)
class GkeOptions:
    """The options of `launch` for `on="gke"`: the TPU of each slice, and how to run the job.

    `staging` is the bucket for the code, `kueue` a queue to wait in; `check` looks for nodes first.
    """

    accelerator_type: str | None = None
    num_slices: int = 1
    staging: str | None = None
    kueue: str | None = None
    spot: bool = False
    flex: bool = False
    image: str | None = None
    max_restarts: int = 3
    env: Mapping[str, str] = field(default_factory=dict)
    check: bool = True

    @property
    def changed(self) -> dict[str, bool]:
        """The flags of these options, and whether each differs from its default."""
        own = (each for each in fields(self) if each.name not in ("env", "check"))
        return {
            "--" + each.name.replace("_", "-"): getattr(self, each.name) != each.default
            for each in own
        }


@dataclass(frozen=True)
class JobSetSpec:
    """The parameters of a JobSet; `chips_per_node` if the cluster's nodes are not the default.

    `archive` is the bucket, the name and the SHA-256 of the code.
    """

    name: str
    kind: AcceleratorType
    options: GkeOptions
    archive: tuple[str, str, str]
    key: str
    script: str
    limit_s: float | None = None
    chips_per_node: int | None = None

    @property
    def accelerator(self) -> str:
        """The label of nodes with this generation."""
        return str(facts()["accelerators"][self.kind.generation])

    @property
    def node_chips(self) -> int:
        """Chips of one node, all of which one pod uses."""
        return self.chips_per_node or self.kind.chips_per_worker

    @property
    def nodes(self) -> int:
        """Nodes of one slice."""
        return self.kind.chips // self.node_chips

    @property
    def provisioning(self) -> str:
        """How its nodes are paid for."""
        return "flex" if self.options.flex else "spot" if self.options.spot else "on_demand"

    @property
    def selector(self) -> dict[str, str]:
        """The labels of the nodes that it runs on."""
        chosen = {ACCELERATOR: self.accelerator, TOPOLOGY: str(self.kind.topology)}
        chosen |= {f"{GOOGLE}/gke-flex-start": "true"} if self.options.flex else {}
        return chosen | ({f"{GOOGLE}/gke-spot": "true"} if self.options.spot else {})


def check_type(options: GkeOptions) -> AcceleratorType:
    """Look up a type that GKE has; raises UsageError for another, or for too many slices."""
    if not options.accelerator_type:
        raise UsageError("Which TPU on GKE?", hint="--accelerator-type v6e-16")
    kind = describe(options.accelerator_type)
    if kind.generation not in facts()["accelerators"] or not kind.topology:
        known = ", ".join(facts()["accelerators"])
        text = f"GKE does not have {kind.accelerator_type}."
        raise UsageError(text, hint=f"Generations on GKE: {known}.")
    if options.num_slices > 1 and kind.workers == 1:
        raise UsageError(
            f"Each of several slices needs several hosts; {kind.accelerator_type} is one host.",
            hint="Leave out --num-slices, or choose a larger type: tpuctl types",
        )
    if options.spot and options.flex:
        raise UsageError("--spot and --flex are different nodes.", hint="Give one of them.")
    return kind


def job_set(spec: JobSetSpec) -> dict[str, Any]:
    """Write the JobSet; raises UsageError for what the cluster's webhook would refuse."""
    labels = {OURS: "tpuctl", TYPE: spec.kind.accelerator_type, PROVISIONING: spec.provisioning}
    labels[NODES] = str(spec.nodes)
    bucket, archive, _ = spec.archive
    code = f"gs://{bucket}/{archive}"
    notes = {KEY: spec.key, CODE: code, "tpuctl.dev/script": spec.script}
    if spec.options.num_slices > 1 or spec.nodes > 1:
        notes["alpha.jobset.sigs.k8s.io/exclusive-topology"] = NODE_POOL
    if spec.options.flex and spec.options.kueue:
        most = spec.limit_s or facts()["flex_most_s"]
        notes["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = f"{most:.0f}"
    limit = {"activeDeadlineSeconds": int(spec.limit_s)} if spec.limit_s else {}
    job = {
        "parallelism": spec.nodes,
        "completions": spec.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **limit,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": _pod(spec)},
    }
    made = {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {
            "name": spec.name,
            "labels": {**labels, **({QUEUE: spec.options.kueue} if spec.options.kueue else {})},
            "annotations": notes,
        },
        "spec": {
            "ttlSecondsAfterFinished": _KEPT_S,
            "failurePolicy": {"maxRestarts": spec.options.max_restarts, "rules": _rules(spec)},
            "replicatedJobs": [
                {"name": SLICE, "replicas": spec.options.num_slices, "template": {"spec": job}},
            ],
        },
    }
    check(made)
    return made


def _rules(spec: JobSetSpec) -> list[dict[str, Any]]:
    """Disruptions restart it and cost nothing; a crash spends one of the restarts."""
    rules: list[dict[str, Any]] = [
        {
            "name": "disruption",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
    ]
    if spec.limit_s:
        reasons = ["DeadlineExceeded"]
        rules.append({"name": "time_limit", "action": "FailJobSet", "onJobFailureReasons": reasons})
    return rules


def _pod(spec: JobSetSpec) -> dict[str, Any]:
    image = spec.options.image or facts()["image"]
    chips = {"google.com/tpu": spec.node_chips}
    usual = {"image": image, "workingDir": _WORK}
    usual["volumeMounts"] = [{"name": "code", "mountPath": _WORK}]
    source = (resources.files(__package__) / "fetch_code.py").read_text(encoding="utf-8")
    fetch = f"{source}\n\nmain(*sys.argv[1:])\n"
    tolerated = ["google.com/tpu"]
    tolerated += [f"{GOOGLE}/gke-queued"] if spec.options.flex else []
    tolerated += [f"{GOOGLE}/gke-spot"] if spec.options.spot else []
    # Between slices data go over the network of the hosts, which is faster than that of pods.
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {
        "restartPolicy": "Never",
        **(network if spec.options.num_slices > 1 else {}),
        "nodeSelector": spec.selector,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        "initContainers": [
            {"name": "code", **usual, "command": ["python3", "-c", fetch, *spec.archive]}
        ],
        "containers": [
            {
                "name": "train",
                **usual,
                "command": ["python3", "-u", ".tpuctl/tpuctl/start_python.py",
                            "tpuctl.training.hosted_job", ".tpuctl/job.json"],
                "env": [{"name": name, "value": value} for name, value in spec.options.env.items()],
                "ports": [{"containerPort": port} for port in (8471, 8080)],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
        "volumes": [{"name": "code", "emptyDir": {}}],
    }  # fmt: skip


def check(made: Mapping[str, Any]) -> None:
    """Raise UsageError for what a schema cannot tell, and JobSet's webhook refuses."""
    name, spec = made["metadata"]["name"], made["spec"]
    rules = spec.get("failurePolicy", {}).get("rules", ())
    names = [rule["name"] for rule in rules]
    if len(set(names)) < len(names) or not all(_RULE.fullmatch(each) for each in names):
        raise UsageError(f"The failure rules of {name} need unique, valid names: {names}.")
    for each in spec["replicatedJobs"]:
        job, replicas = each["template"]["spec"], each["replicas"]
        pods = job["parallelism"]
        if not 0 < replicas * pods <= _MAX_PODS:
            raise UsageError(f"{name} would have {replicas} slices of {pods} pods.")
        longest = f"{name}-{each['name']}-{replicas - 1}-{pods - 1}-abcde"
        if not _NAME.fullmatch(name) or len(longest) > _LONGEST:
            most = _LONGEST - len(longest) + len(name)
            raise UsageError(
                f"{name!r} is not a valid name for a job on GKE.",
                hint=f"Lower-case letters, digits and dashes, a letter first, at most {most}.",
            )
        pod = job["template"]["spec"]
        if job.get("podFailurePolicy") and pod.get("restartPolicy") != "Never":
            raise UsageError(f"{name}: a podFailurePolicy needs restartPolicy Never.")
        for variable in pod["containers"][0].get("env", ()):
            if not _VARIABLE.fullmatch(variable["name"]):
                raise UsageError(f"{variable['name']!r} is not a valid name for a variable.")


def name_for(stem: str, suffix: str, slices: int, nodes: int) -> str:
    """Make a valid name from a script's, as long as the names of the pods allow."""
    rest = len(f"-{suffix}-{SLICE}-{slices - 1}-{nodes - 1}-abcde")
    plain = slug(stem).strip("-0123456789")
    return f"{plain[: min(24, _LONGEST - rest)].strip('-') or 'job'}-{suffix}"
