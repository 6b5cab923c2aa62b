"""What Colab, Kaggle and Google Cloud no longer offer: old nodes, chips, variables, packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.linting.cells import Command
from tpuctl.linting.models import Edit, Hit, as_dict
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument
from tpuctl.linting.targets import UNKNOWN

RESOLVERS = (
    "tf.distribute.cluster_resolver.TPUClusterResolver",
    "tf.contrib.cluster_resolver.TPUClusterResolver",
    "tf.distribute.cluster_resolver.TPUClusterResolver.connect",
)
STRATEGIES = (
    "tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy",
    "tf.contrib.tpu.TPUDistributionStrategy", "tf.contrib.distribute.TPUStrategy",
)  # fmt: skip
_VARIABLES = ("COLAB_TPU_ADDR", "XRT_TPU_CONFIG")
# What a notebook's file says about its accelerator.
_OLD_APIS = (["tpu", "v1"], ["tpu", "v1alpha1"])
_RETIRED = {"V28": "Colab v2-8", "tpu1vmV38": "Kaggle v3-8", "tpuV38": "Kaggle v3-8"}
_OLD_PACKAGES = re.compile(
    r"(?<![\w/.-])(?:tensorflow|tf-nightly|tensorflow-tpu|tensorflow-gpu)==(?:1\.|2\.(?:\d|1[0-5])(?!\d))"
    r"|pytorch-xla-env-setup|cloud-tpu-client|torch_xla-1\.|torch_xla==1\."
)
_OLD_NODES = re.compile(
    r"\bctpu\s+(?:up|status|pause|delete)|gcloud\s+(?:(?:alpha|beta)\s+)?compute\s+tpus\s+"
    r"(?:create|start|stop|reimage|describe|delete|list)\b"
)


def old_variables(program: Program) -> Iterator[Hit]:
    """Find variables of the environment that no runtime sets."""
    for node in program.nodes[ast.Constant]:
        use = program.environment_use(node) if node.value in _VARIABLES else None
        code = "T105" if node.value == "COLAB_TPU_ADDR" else "T110"
        if use == "read":
            yield Hit(code, node, f"Reading {node.value} raises KeyError: no runtime sets it.")
        elif use == "write":
            yield Hit(code, node, f"Nothing reads {node.value} any more.", "warning")
        elif use == "ask":
            message = f"No runtime sets {node.value}, so this finds no TPU even where there is one."
            yield Hit(code, node, message, None if code == "T105" else "warning")
    for command in program.document.commands:
        for name in _VARIABLES:
            if name in command.text:
                yield _of_command("T105", command, f"No runtime sets {name}.")


def old_magics(program: Program) -> Iterator[Hit]:
    """Find magics and shell lines that no longer do what they say."""
    for command in program.document.commands:
        if command.text.startswith("%tensorflow_version"):
            edit = _removal(program, command)
            message = "Colab has one TensorFlow on CPU and GPU, none on TPU, and no such magic."
            yield _of_command("T112", command, message, edit)
        if found := _OLD_NODES.search(command.text):
            message = f"`{found[0]}` is for legacy TPU nodes, which are gone; use tpu-vm."
            yield _of_command("T113", command, message)
        if _is_install(command.text) and (found := _OLD_PACKAGES.search(command.text)):
            message = f"{found[0]} has no build for the Python of today's runtimes."
            yield _of_command("T117", command, message)


def _is_install(text: str) -> bool:
    return text.startswith(("!", "%pip")) and bool(
        re.search(r"\b(?:pip3?|curl|wget|python3?)\b", text)
    )


def _of_command(code: str, command: Command, message: str, edit: Edit | None = None) -> Hit:
    place = command.line, command.column
    return Hit(code, place, message, edits=(edit,) if edit else ())


def _removal(program: Program, command: Command) -> Edit | None:
    """Remove the line of a magic: the statement that replaces it."""
    for node in program.tree.body:
        if isinstance(node, ast.Expr) and node.lineno == command.line:
            return Edit(node, "remove")
    return None


def legacy_nodes(program: Program) -> Iterator[Hit]:
    """Find TPUs that are reached over the network: the legacy nodes."""
    for call in program.calls_of(*RESOLVERS):
        given = argument(call, 0, "tpu")
        address = program.text(given)
        if given is not None and address is not None and address.startswith("grpc://"):
            message = "A TPU at a grpc:// address is a legacy node; there are none any more."
            yield Hit("T113", call, message)
        elif has_place(call) and not program.target.situation.several_hosts:
            message = "A TPU looked up by name, zone and project is a legacy node."
            yield Hit("T113", call, message, "warning")
    for call in program.calls_of("googleapiclient.discovery.build"):
        if [program.constant(given) for given in call.args[:2]] in _OLD_APIS:
            message = "Version 1 of the Cloud TPU API knows legacy nodes only; use v2."
            yield Hit("T113", call, message, "warning")
    message = "A grpc:// address is that of a legacy TPU node."
    # Where it is made of this variable, that is the finding.
    named = "COLAB_TPU_ADDR" in program.document.text
    for node in program.nodes[ast.Constant] if not named else ():
        is_address = isinstance(node.value, str) and node.value.startswith("grpc://")
        inside = any(program.called(outer) in RESOLVERS for outer in program.ancestors(node))
        if is_address and _is_of_tpu(program, node) and not inside:
            yield Hit("T113", node, message, "warning")
    for command in program.document.commands:
        if command.text.startswith("!") and "grpc://" in command.text:
            yield _of_command("T113", command, message)


def has_place(call: ast.Call) -> bool:
    """Whether a resolver is told where in Google Cloud its TPU is."""
    return any(k.arg in ("zone", "project", "gcp_project", "tpu_zone") for k in call.keywords)


def _is_of_tpu(program: Program, node: ast.Constant) -> bool:
    """Whether an address is that of a TPU: by its port, or the name it is given."""
    statement = program.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    named = any("tpu" in ast.unparse(target).lower() for target in targets)
    return ":8470" in str(node.value) or named


def retired_chips(program: Program) -> Iterator[Hit]:
    """Find a notebook whose file asks for an accelerator that was withdrawn."""
    metadata = as_dict(program.document.metadata)
    for service, key in (("colab", "gpuType"), ("kaggle", "accelerator")):
        kind = as_dict(metadata.get(service)).get(key)
        if isinstance(kind, str) and kind in _RETIRED:
            name = _RETIRED[kind]
            message = f"The notebook's file asks for the {name}, which was withdrawn."
            yield Hit("T114", (1, 0), message, "warning")


def tensorflow_on_hosted(program: Program) -> Iterator[Hit]:
    """Find TPUStrategy where no TensorFlow that drives a TPU is available."""
    target = program.target
    service = "Kaggle" if target.name.startswith("kaggle") else "Colab"
    for call in program.calls_of(*RESOLVERS[:1], *RESOLVERS[2:], *STRATEGIES[:2]):
        path = program.path(call.func)
        name = path.removeprefix("tf.distribute.")
        if target.is_hosted:
            message = f"{name}: TensorFlow does not drive the TPUs of {service}."
            yield Hit("T115", call, message)
        elif target.name == UNKNOWN and path in STRATEGIES:
            message = f"{name}: the TensorFlow of Colab and Kaggle does not drive their TPUs."
            yield Hit("T115", call, message, "maybe")


CHECKS = (
    old_variables,
    old_magics,
    legacy_nodes,
    retired_chips,
    tensorflow_on_hosted,
)
