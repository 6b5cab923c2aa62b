"""The keys that scripts rely on (CONTRACT.md), and a check that finds what is missing.

A shape maps a key to the shape below it; None ends a branch. A key in brackets is a list whose
every element has the shape; a key with a question mark may be null.
"""

from typing import Any

Shape = dict[str, Any]


def keys(names: str) -> Shape:
    return dict.fromkeys(names.split())


ENVELOPE = keys("schema command status data errors warnings")
ERROR = keys("code message hint")
CONFIG: Shape = {"[settings]": keys("name value source meaning"), **keys("files")}
DOCTOR: Shape = {
    **keys(
        "runtime accelerator generation chips cores devices hosts usable worker container evidence"
        " packages strategy_tf strategy_jax strategy_torch"
    ),
    "host": keys("vcpus memory_bytes disk_free_bytes python"),
    "recommended": keys("framework strategy snippet"),
    "[holders]": keys("pid user command device is_this_notebook"),
    "[problems]": keys("code severity summary evidence fix fix_command"),
}
PROFILE: Shape = {
    **keys(
        "kind batch_size steps pipeline_examples_per_s device_examples_per_s input_wait_fraction"
        " device_idle_fraction mxu_idle_fraction mxu_utilization verdict confidence"
        " overhead_fraction evidence"
    ),
    "window": keys("start_s end_s"),
    "?step_ms": keys("mean p50 p95"),
    "[stages]": keys(
        "index name op location examples_per_s_alone cpu_ms_per_example share_of_cpu parallelism"
        " method is_bottleneck"
    ),
    "vcpus": keys("available used needed_to_saturate low high why_null"),
    "[advice]": keys(
        "code what predicted_examples_per_s measured_examples_per_s predicted_mxu_idle_fraction"
        " error_fraction change"
    ),
}
PRESIZE: Shape = {
    **keys(
        "plan_id images written skipped salvaged shards bytes_in bytes_out images_per_s seconds"
        " resumed manifest"
    ),
    "[quarantined]": keys("path reason"),
}
TPU: Shape = {
    **keys(
        "name zone accelerator_type generation chips state health spot queued_resource"
        " runtime_version created expires labels usd_per_hour usd_so_far emulated id"
    ),
    "[workers]": keys("index internal_ip external_ip state"),
}
CREATED: Shape = {**TPU, "[attempts]": keys("zone outcome reason seconds")}
TPU_LIST: Shape = {
    "[tpus]": TPU,
    "[queued_resources]": keys("name zone state accelerator_type nodes created usd_per_hour"),
    "unreachable_zones": None,
}
LEFTOVERS: Shape = {
    "[found]": keys("kind name zone reason usd_per_hour chips action"),
    **keys("freed_chips saved_usd_per_hour"),
}
WATCHED: Shape = {
    "[attempts]": keys("number cause reason zone tpu_id job began ended exit_code worker"),
    **keys("name zone job crashes usd_per_hour tail"),
}
TOP: Shape = {
    "[workers]": {
        **keys("index vcpu_percent memory_used_bytes"),
        "[chips]": keys("index duty_cycle_percent hbm_used_bytes holder_pid why_null"),
    }
}
FIT: Shape = {
    **keys(
        "accelerator_type batch_size per_chip_batch fits hbm_needed_bytes hbm_available_bytes"
        " flops_per_step hbm_bytes_per_step compute_ms memory_ms bound mxu_padding_waste_fraction"
        " compile_seconds max_batch warnings"
    ),
    "step_ms_estimate": keys("low high"),
    "compiler": keys("libtpu jaxlib"),
}
BENCH: Shape = {
    "[rows]": keys(
        "device framework strategy batch_size first_epoch_s epoch_s step_ms us_per_example"
        " examples_per_s"
    )
}
PLAN = keys("script argv env unset framework strategy devices workers because")


def missing(data: Any, shape: Shape, where: str = "data") -> list[str]:
    """Name every key of the shape that the data lacks."""
    found = []
    for key, below in shape.items():
        name, is_list, optional = key.strip("[]?"), key.startswith("["), key.startswith("?")
        here = f"{where}.{name}"
        if not isinstance(data, dict) or name not in data:
            found.append(here)
        elif below is None or (optional and data[name] is None):
            continue
        elif is_list:
            for index, item in enumerate(data[name]):
                found += missing(item, below, f"{here}[{index}]")
        else:
            found += missing(data[name], below, here)
    return found


def problems(document: dict[str, Any], command: str, shape: Shape) -> list[str]:
    """Name what is wrong with a command's whole document."""
    found = missing(document, ENVELOPE, "document")
    if found:
        return found
    if document["schema"] != "tpuctl/1" or document["command"] != command:
        found.append(f"schema {document['schema']}, command {document['command']}")
    if document["status"] not in ("ok", "attention", "partial", "error"):
        found.append(f"status {document['status']}")
    for error in document["errors"]:
        found += missing(error, ERROR, "errors[]")
    return found if document["errors"] else found + missing(document["data"], shape)
