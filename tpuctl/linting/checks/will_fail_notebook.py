"""What fails in a notebook: installs that replace the image's frameworks, secrets in cells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.linting.models import Hit, Severity
from tpuctl.linting.program import Program

_FRAMEWORKS = {
    "tensorflow", "tf-nightly", "tensorflow-tpu", "tensorflow-gpu", "jax", "jaxlib", "libtpu",
    "torch", "torch-xla", "torch_xla", "torchvision",
}  # fmt: skip
_INSTALL = re.compile(r"^(?:!|%)\s*(?:sudo\s+|uv\s+)?(?:python3?\s+-m\s+)?pip3?\s+install\s+(.*)")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
_SECRETS = (
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("a GitHub token", re.compile(r"\b(?:ghp|gho|ghs|github_pat)_[A-Za-z0-9_]{30,}\b")),
    ("a Google API key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("an OpenAI key", re.compile(r"\bsk-(?:proj-)?[A-Za-z0-9_-]{32,}\b")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a Kaggle key", re.compile(r"[\"']key[\"']\s*:\s*[\"'][0-9a-f]{32}[\"']")),
)
_SECRET_NAME = re.compile(r"(?:api_?key|token|secret|password|passwd|kaggle_key)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"[A-Za-z0-9_+/=-]{20,}")
_EXPORTED = re.compile(r"\b(\w*(?:KEY|TOKEN|SECRET|PASSWORD))=[\"']?([\w+/=-]{20,})")
_NOT_SECRET = re.compile(r"^(?:your|my|the|some|xxx|<|\.|\*)|(.)\1{7}", re.IGNORECASE)


def installs(program: Program) -> Iterator[Hit]:
    """Find installs that replace the frameworks of a hosted notebook's image."""
    target = program.target
    if not program.document.is_notebook or program.is_for_gpu:
        return
    if target.is_known and not target.is_hosted:
        return
    for command in program.document.commands:
        found = _INSTALL.match(command.text)
        if not found:
            continue
        words = (word.strip("\"'") for word in found[1].split() if "://" not in word)
        given = (package[0].lower() for word in words if (package := _NAME.match(word)))
        names = [name for name in given if name in _FRAMEWORKS]
        if names:
            severity: Severity = "warning" if target.is_hosted else "maybe"
            message = f"This install replaces the {', '.join(names)} that the image was built with."
            yield Hit("T315", (command.line, command.column), message, severity)


def secrets(program: Program) -> Iterator[Hit]:
    """Find credentials written into the code; the message never repeats them."""
    for node in program.nodes[ast.Constant]:
        if isinstance(node.value, str) and len(node.value) >= 16:
            name = _name(program.parents.get(node))
            yield from _secret(node, node.value)
            if name == "key" or _SECRET_NAME.search(name):
                yield from _named_secret(node, name, node.value)
    for command in program.document.commands:
        place = (command.line, command.column)
        yield from _secret(place, command.text)
        if found := _EXPORTED.search(command.text):
            yield from _named_secret(place, found[1], found[2])


def _secret(node: ast.AST | tuple[int, int], text: str) -> Iterator[Hit]:
    for what, pattern in _SECRETS:
        found = pattern.search(text)
        if found and not _NOT_SECRET.search(found[0].partition("_")[2] or found[0]):
            yield Hit("T316", node, f"{what[0].upper()}{what[1:]} is written into the code.")
            return


def _named_secret(node: ast.AST | tuple[int, int], name: str, value: str) -> Iterator[Hit]:
    # Words joined by hyphens, such as names of parameters, are not secrets.
    is_random = any(
        len(part) >= 12 and any(map(str.isdigit, part)) and any(map(str.isalpha, part))
        for part in re.split("[-_/]", value)
    )
    if is_random and _SECRET_VALUE.fullmatch(value) and not _NOT_SECRET.search(value):
        yield Hit("T316", node, f"A secret is assigned to {name}.", "maybe")


def _name(node: ast.AST | None) -> str:
    """Return the name that an assignment or a keyword gives to a value."""
    if isinstance(node, ast.keyword):
        return node.arg or ""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return getattr(target, "attr", getattr(target, "id", ""))


CHECKS = (installs, secrets)
