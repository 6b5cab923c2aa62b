"""The controllers, which turn JobSets into Jobs and Jobs into pods, and apply failure policies."""

from collections.abc import Iterable
from copy import deepcopy
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from tpuctl.emulator.kubernetes.objects import Objects, has_condition, set_condition
from tpuctl.emulator.kubernetes.plan import POOL, TPU, Plan
from tpuctl.emulator.kubernetes.pods import Kubelet, injected
from tpuctl.emulator.methods import Document

JOBSET = "jobset.sigs.k8s.io"
QUEUE = "kueue.x-k8s.io/queue-name"
_INDEX = "batch.kubernetes.io/job-completion-index"
_ENDED = ("Succeeded", "Failed")


class Controller:
    """Moves the cluster towards the state that its objects specify, in small steps."""

    def __init__(self, objects: Objects, kubelet: Kubelet, plan: Plan) -> None:
        self._objects, self._kubelet, self._plan = objects, kubelet, plan
        self._preempted: set[tuple[str, int]] = set()

    def step(self) -> None:
        """Take all steps that are due now."""
        with self._objects.changed:
            for job_set in self._objects.all("jobsets"):
                self._reconcile(job_set)

    def delete(self, job_set: Document) -> None:
        """Delete a JobSet and what it owns."""
        self._remove_jobs(job_set)
        for workload in self._objects.owned("workloads", job_set):
            self._objects.remove("workloads", workload)
        self._objects.remove("jobsets", job_set)

    def _reconcile(self, job_set: Document) -> None:
        status, spec = job_set.setdefault("status", {"restarts": 0}), job_set["spec"]
        status.setdefault("restartsCountTowardsMax", 0)
        if status.get("terminalState"):
            ttl = spec.get("ttlSecondsAfterFinished")
            if ttl is not None and self._age(status["conditions"][-1]["lastTransitionTime"]) >= ttl:
                self.delete(job_set)
            return
        self._queue(job_set)
        if spec.get("suspend"):
            self._remove_jobs(job_set)
            self._condition(job_set, "Suspended", "True", "SuspendedJobs", "jobset is suspended")
            return
        if has_condition(job_set, "Suspended"):
            self._condition(job_set, "Suspended", "False", "ResumeJobs", "jobset is resumed")
        jobs = self._objects.owned("jobs", job_set) or list(self._create_jobs(job_set))
        for job in jobs:
            self._run_job(job_set, job)
        failed = [job for job in jobs if has_condition(job, "Failed")]
        done = [job for job in jobs if has_condition(job, "Complete")]
        self._count(job_set, jobs)
        if failed:
            self._apply_failure_policy(job_set, failed)
        elif len(done) == len(jobs):
            self._finish(job_set, "Completed", "AllJobsCompleted", "jobset completed successfully")

    def _queue(self, job_set: Document) -> None:
        """Act as Kueue: create a workload for a JobSet in a queue, and admit it if that exists."""
        queue = job_set["metadata"].get("labels", {}).get(QUEUE)
        if not queue or not self._plan.queues:
            return
        meta = job_set["metadata"]
        found = self._objects.owned("workloads", job_set)
        if not found:
            labels = {"kueue.x-k8s.io/job-uid": meta["uid"]}
            self._objects.put("workloads", {
                "metadata": {"name": f"jobset-{meta['name']}", "labels": labels,
                             "namespace": meta["namespace"], "ownerReferences": [_owner(job_set)]},
                "spec": {"queueName": queue, "active": True}, "status": {},
            })  # fmt: skip
            return
        reason, why = "Admitted", self._plan.queue_waits
        if queue not in self._plan.queues:
            reason, why = "Inadmissible", f"LocalQueue {queue} doesn't exist"
        elif not found[0]["spec"].get("active", True):
            reason, why = "Deactivated", "The workload is deactivated"
        elif why:
            reason = "Pending"
        admitted, now = not why, self._objects.time()
        if (
            set_condition(found[0]["status"], "QuotaReserved", str(admitted), reason, why, now)
            or job_set["spec"].get("suspend") == admitted
        ):
            job_set["spec"]["suspend"] = not admitted
            set_condition(found[0]["status"], "Admitted", str(admitted), reason, why, now)
            self._objects.put("workloads", found[0])
            self._objects.put("jobsets", job_set)

    def _create_jobs(self, job_set: Document) -> Iterable[Document]:
        meta, restarts = job_set["metadata"], job_set["status"]["restarts"]
        for each in job_set["spec"]["replicatedJobs"]:
            for index in range(each.get("replicas", 1)):
                job = deepcopy(each["template"])
                labels = {
                    f"{JOBSET}/jobset-name": meta["name"],
                    f"{JOBSET}/jobset-uid": meta["uid"],
                    f"{JOBSET}/replicatedjob-name": each["name"],
                    f"{JOBSET}/replicatedjob-replicas": str(each.get("replicas", 1)),
                    f"{JOBSET}/job-index": str(index),
                    f"{JOBSET}/restart-attempt": str(restarts),
                }
                job["metadata"] = {
                    "name": f"{meta['name']}-{each['name']}-{index}",
                    "namespace": meta["namespace"],
                    "labels": {**job.get("metadata", {}).get("labels", {}), **labels},
                    "ownerReferences": [_owner(job_set)],
                }
                pod = job["spec"]["template"]
                pod["metadata"] = deepcopy(pod.get("metadata", {}))
                pod["metadata"].setdefault("labels", {}).update(labels)
                job["status"] = {"startTime": self._objects.time()}
                yield self._objects.put("jobs", job)

    def _run_job(self, job_set: Document, job: Document) -> None:
        """Start the pods of a job, and derive its result from theirs."""
        if has_condition(job, "Failed") or has_condition(job, "Complete"):
            return
        pods = self._objects.owned("pods", job)
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is not None and self._age(job["status"]["startTime"]) >= limit:
            self._fail_job(job, "DeadlineExceeded", "Job was active longer than specified deadline")
            return
        if not pods:
            pods = [self._create_pod(job_set, job, n) for n in range(_count(job, "parallelism"))]
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
        if waiting and not self._schedule(waiting):
            return
        for pod in pods:
            started = self._kubelet.find(pod)
            if not started and self._age(_bound_at(pod)) >= self._plan.start_s:
                self._kubelet.start(pod, self._injected(job_set, job, pod), _names(job_set))
        self._preempt(job_set, job, pods)
        self._conclude(job, pods)

    def _conclude(self, job: Document, pods: list[Document]) -> None:
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
        for pod in failed:
            if why := _pod_failure(job, pod):
                self._fail_job(job, "PodFailurePolicy", why)
                return
        if len(failed) > job["spec"].get("backoffLimit", 6):
            self._fail_job(job, "BackoffLimitExceeded", "Job has reached the specified limit")
        elif failed:
            for pod in failed:
                self._objects.remove("pods", pod)
        elif all(pod["status"]["phase"] == "Succeeded" for pod in pods):
            job["status"]["succeeded"] = len(pods)
            now = self._objects.time()
            set_condition(job["status"], "Complete", "True", "CompletionsReached", "", now)
            self._objects.put("jobs", job)

    def _create_pod(self, job_set: Document, job: Document, index: int) -> Document:
        template, name = deepcopy(job["spec"]["template"]), f"{job['metadata']['name']}-{index}"
        template["metadata"] |= {
            "name": f"{name}-{job_set['status']['restarts']:05}",
            "namespace": job["metadata"]["namespace"],
            "annotations": {**template["metadata"].get("annotations", {}), _INDEX: str(index)},
            "ownerReferences": [_owner(job)],
        }
        template["metadata"]["labels"][_INDEX] = str(index)
        template["metadata"]["labels"]["batch.kubernetes.io/job-name"] = job["metadata"]["name"]
        subdomain = _subdomain(job_set)
        template["spec"] |= {"hostname": name, "subdomain": subdomain}
        for container in template["spec"]["containers"]:
            for kind, amounts in container.get("resources", {}).items():
                # The real API writes every quantity as a string.
                container["resources"][kind] = {key: str(each) for key, each in amounts.items()}
        template["status"] = {"phase": "Pending", "conditions": []}
        return self._objects.put("pods", template)

    def _schedule(self, pods: list[Document]) -> bool:
        """Assign the free nodes of one pool to the pods of a job, to all of them or none."""
        now, used = self._objects.time(), set()
        for pod in self._objects.all("pods", lambda each: "nodeName" in each["spec"]):
            if pod["status"]["phase"] not in _ENDED:
                used.add(pod["spec"]["nodeName"])
        wanted = pods[0]["spec"].get("nodeSelector", {})
        needs = sum(int(each.get("resources", {}).get("limits", {}).get(TPU, 0))
                    for each in pods[0]["spec"]["containers"])  # fmt: skip
        pools: dict[str, list[Document]] = {}
        for node in self._objects.all("nodes"):
            labels, room = node["metadata"]["labels"], int(node["status"]["allocatable"][TPU])
            is_free = node["metadata"]["name"] not in used or not needs
            if wanted.items() <= labels.items() and needs in (0, room) and is_free:
                pools.setdefault(labels[POOL], []).append(node)
        fits = next((nodes for nodes in pools.values() if len(nodes) >= len(pods) or not needs), [])
        if not fits:
            message = "0/{} nodes are available: no free nodes match the pod's node selector"
            for pod in pods:
                total = len(self._objects.all("nodes"))
                self._condition(pod, "PodScheduled", "False", "Unschedulable",
                                message.format(total), event="FailedScheduling")  # fmt: skip
            return False
        for number, pod in enumerate(pods):
            pod["spec"]["nodeName"] = fits[number % len(fits)]["metadata"]["name"]
            set_condition(pod["status"], "PodScheduled", "True", "Scheduled", "", now)
            pod["status"] |= {"hostIP": "127.0.0.1", "startTime": now}
            self._objects.put("pods", pod)
        return True

    def _injected(self, job_set: Document, job: Document, pod: Document) -> dict[str, str]:
        labels, spec = job["metadata"]["labels"], pod["spec"]
        count = _count(job, "parallelism")
        hosts = [f"{job['metadata']['name']}-{n}.{spec['subdomain']}" for n in range(count)]
        node = self._objects.find("nodes", "", spec["nodeName"])
        assert node
        slices, name = int(labels[f"{JOBSET}/replicatedjob-replicas"]), job_set["metadata"]["name"]
        first = f"{name}-{labels[f'{JOBSET}/replicatedjob-name']}-0-0.{spec['subdomain']}"
        index = int(pod["metadata"]["labels"][_INDEX])
        number = int(labels[f"{JOBSET}/job-index"])
        return injected(node, hosts, index, slices, number, first)

    def _preempt(self, job_set: Document, job: Document, pods: list[Document]) -> None:
        """Preempt the nodes of a slice if the scenario says so."""
        labels, name = job["metadata"]["labels"], job_set["metadata"]["name"]
        for number, plan in enumerate(self._plan.preemptions):
            index, attempt = (
                int(labels[f"{JOBSET}/{k}"]) for k in ("job-index", "restart-attempt")
            )
            is_it = fnmatchcase(name, plan.name) and (plan.slice, plan.attempt) == (index, attempt)
            due = self._plan.start_s + plan.after_s
            runs = all(pod["status"]["phase"] == "Running" for pod in pods)
            key = (job_set["metadata"]["uid"], number)
            if (
                is_it
                and runs
                and self._age(_bound_at(pods[0])) >= due
                and key not in self._preempted
            ):
                self._preempted.add(key)
                for pod in pods:
                    self._kubelet.stop(pod, "TerminationByKubelet")

    def _fail_job(self, job: Document, reason: str, message: str) -> None:
        set_condition(job["status"], "Failed", "True", reason, message, self._objects.time())
        self._objects.put("jobs", job)
        for pod in self._objects.owned("pods", job):
            self._kubelet.stop(pod)
            # Otherwise it would keep its node forever: it has no process whose end frees it.
            if not self._kubelet.find(pod) and pod["status"]["phase"] not in _ENDED:
                self._objects.remove("pods", pod)

    def _apply_failure_policy(self, job_set: Document, failed: list[Document]) -> None:
        policy, status = job_set["spec"].get("failurePolicy"), job_set["status"]
        first = failed[0]["metadata"]["name"]
        if policy is None:
            text = f"jobset failed due to one or more job failures (first failed job: {first})"
            self._finish(job_set, "Failed", "FailedJobs", text)
            return
        rule = next((each for each in policy.get("rules", ()) if _applies(each, failed)), None)
        action = rule["action"] if rule else "RestartJobSet"
        free = "IgnoreMaxRestarts" in action
        if action == "FailJobSet":
            text = f"applying FailJobSet failure policy action (first failed job: {first})"
            self._finish(job_set, "Failed", "FailJobSetFailurePolicyAction", text)
        elif not free and status["restartsCountTowardsMax"] >= policy.get("maxRestarts", 0):
            text = (
                f"jobset failed due to reaching max number of restarts (first failed job: {first})"
            )
            self._finish(job_set, "Failed", "ReachedMaxRestarts", text)
        else:
            status["restarts"] += 1
            status["restartsCountTowardsMax"] += not free
            text = f"applying {action} failure policy action (first failed job: {first})"
            self._objects.event(job_set, f"{action}FailurePolicyAction", text, kind="Warning")
            self._remove_jobs(job_set)
            self._objects.put("jobsets", job_set)

    def _finish(self, job_set: Document, state: str, reason: str, message: str) -> None:
        job_set["status"]["terminalState"] = state
        self._condition(job_set, state, "True", reason, message, event=reason)
        for job in self._objects.owned("jobs", job_set):
            if not (has_condition(job, "Failed") or has_condition(job, "Complete")):
                self._remove_job(job)

    def _remove_jobs(self, job_set: Document) -> None:
        for job in self._objects.owned("jobs", job_set):
            self._remove_job(job)

    def _remove_job(self, job: Document) -> None:
        for pod in self._objects.owned("pods", job):
            self._kubelet.stop(pod)
            self._objects.remove("pods", pod)
        self._objects.remove("jobs", job)

    def _count(self, job_set: Document, jobs: list[Document]) -> None:
        found = []
        for each in job_set["spec"]["replicatedJobs"]:
            own = [
                j
                for j in jobs
                if j["metadata"]["labels"][f"{JOBSET}/replicatedjob-name"] == each["name"]
            ]
            done, failed = (
                sum(has_condition(j, kind) for j in own) for kind in ("Complete", "Failed")
            )
            ready = sum(
                all(
                    p["status"]["phase"] in ("Running", "Succeeded")
                    for p in self._objects.owned("pods", j)
                )
                for j in own
            )
            found.append({"name": each["name"], "active": len(own) - done - failed, "ready": ready,
                          "succeeded": done, "failed": failed, "suspended": 0})  # fmt: skip
        if job_set["status"].get("replicatedJobsStatus") != found:
            job_set["status"]["replicatedJobsStatus"] = found
            self._objects.put("jobsets", job_set)

    def _condition(self, about: Document, *condition: str, event: str = "") -> None:
        if set_condition(about["status"], *condition, self._objects.time()):  # type: ignore[call-arg]
            plural = {"JobSet": "jobsets", "Pod": "pods"}[about["kind"]]
            self._objects.put(plural, about)
            if event:
                kind = "Normal" if condition[0] == "Completed" else "Warning"
                self._objects.event(about, event, condition[3], kind=kind)

    def _age(self, time: str) -> float:
        """Return the seconds since a time in the API's format."""
        then = datetime.fromisoformat(time.replace("Z", "+00:00"))
        return (self._objects.now() - then) / timedelta(seconds=1)


def _subdomain(job_set: Document) -> str:
    name: str = job_set["metadata"]["name"]
    return str(job_set["spec"].get("network", {}).get("subdomain", name))


def _names(job_set: Document) -> list[str]:
    """Return the host names of the pods of a JobSet."""
    name, domain = job_set["metadata"]["name"], _subdomain(job_set)
    return [
        f"{name}-{each['name']}-{job}-{pod}.{domain}"
        for each in job_set["spec"]["replicatedJobs"]
        for job in range(each.get("replicas", 1))
        for pod in range(_count(each["template"], "parallelism"))
    ]


def _owner(document: Document) -> Document:
    meta = document["metadata"]
    return {"apiVersion": document["apiVersion"], "kind": document["kind"], "name": meta["name"],
            "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}  # fmt: skip


def _count(job: Document, key: str) -> int:
    return int(job["spec"].get(key, 1))


def _bound_at(pod: Document) -> str:
    found = pod["status"]["conditions"]
    return str(next(each["lastTransitionTime"] for each in found if each["type"] == "PodScheduled"))


def _pod_failure(job: Document, pod: Document) -> str:
    """Return why a rule of the pod failure policy fails the job at once; "" if none does."""
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", ()):
        if any(has_condition(pod, each["type"]) for each in rule.get("onPodConditions", ())):
            text = f"Pod {pod['metadata']['name']} has failed matching FailJob rule"
            return text if rule["action"] == "FailJob" else ""
    return ""


def _applies(rule: Document, failed: list[Document]) -> bool:
    reasons = rule.get("onJobFailureReasons")
    found = (each for job in failed for each in job["status"]["conditions"])
    return any(each["type"] == "Failed" and each["reason"] in (reasons or [each["reason"]])
               for each in found)  # fmt: skip
