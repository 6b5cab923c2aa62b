"""The templates that ship with tpuctl, and the flags of a script, which is never run."""

import ast
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tpuctl
from tpuctl.codec import read_limited
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tpuctl.outcome import Outcome
from tpuctl.storage.local import write_atomically
from tpuctl.training.source import read_source, stated_frameworks

# The actions of flags without a value, and the type of their `Flag`.
_SWITCHES = {"store_true": "bool", "store_false": "bool", "BooleanOptionalAction": "yes|no"}


@dataclass(frozen=True)
class Flag:
    """One command-line flag of a training script, such as `--batch-size`."""

    name: str
    help: str
    type: str = "str"
    choices: tuple[str, ...] = ()
    default: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it has no value."""
        return self.type in _SWITCHES.values()


@dataclass(frozen=True)
class Template(Outcome):
    """A training script: its summary, flags and frameworks.

    `frameworks` is the script's `FRAMEWORKS = (...)`, else what it imports; empty if unknown. A
    plain Keras script has no strategy code and can run inside any strategy. `arguments` come before
    those of the user. What `--strategy` means is known only of a script that `is_for_tpuctl`.
    """

    name: str
    summary: str
    path: str
    flags: tuple[Flag, ...]
    frameworks: tuple[str, ...]
    usage: str = field(metadata={"lines": True})
    is_plain_keras: bool = False
    uses_keras: bool = field(default=False, metadata={"internal": True})
    needs_xla: bool = field(default=False, metadata={"internal": True})
    is_for_tpuctl: bool = field(default=False, metadata={"internal": True})
    arguments: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def reads_shards(self) -> bool:
        """Whether its --data takes shards made by `tpuctl data presize`."""
        return any(flag.name == "--data" and "of shards" in flag.help for flag in self.flags)

    @property
    def sets_own_strategy(self) -> bool:
        """Whether its strategy cannot be set, neither by a flag nor by a scope around it."""
        return not self.is_plain_keras and all(flag.name != "--strategy" for flag in self.flags)


@dataclass(frozen=True)
class Catalog(Outcome):
    """All templates."""

    templates: tuple[Template, ...]

    @property
    def in_words(self) -> str:
        """Their names."""
        return f"{len(self.templates)} templates: {', '.join(t.name for t in self.templates)}"


@dataclass(frozen=True)
class Written(Outcome):
    """A template that was copied into the user's folder."""

    path: str
    next_command: str


# Other names of a template, which has its own folder under each.
_ALSO = {"fashion-mnist": "mnist-cnn"}


def list_templates() -> Catalog:
    """Describe every template."""
    return Catalog(tuple(map(describe_template, template_names())))


def template_names() -> list[str]:
    """Return the names of all templates."""
    return sorted([*(_template_name(script) for script in _folder().glob("*.py")), *_ALSO])


def describe_template(name: str) -> Template:
    """Describe a template; raises NotFoundError."""
    found, out = describe_script(find_template(name)), f"training/{name}"
    if name not in _ALSO:
        return found
    flags = (replace(f, default=out) if f.name == "--out" else f for f in found.flags)
    return replace(found, name=name, flags=tuple(flags), arguments=("--out", out))


def find_template(name: str) -> Path:
    """Return the script of a template; raises NotFoundError."""
    path = _folder() / f"{_ALSO.get(name, name).replace('-', '_')}.py"
    if not path.is_file():
        names = template_names()
        near = [each for each in names if name in each] or get_close_matches(name, names, 1)
        meant = f"Did you mean {' or '.join(near)}? " if name and near else ""
        raise NotFoundError(
            f"Unknown template {name!r}.", hint=f"{meant}Templates: {', '.join(names)}."
        )
    return path


def describe_script(path: Path) -> Template:
    """Read a script's docstring, flags and frameworks without running it.

    Raises NotFoundError, or InvalidInputError if the file is not valid Python.
    """
    try:
        tree = ast.parse(read_limited(path), os.path.abspath(path))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"The script {path} does not exist.", hint="List the templates: tpuctl templates list"
        ) from error
    except OSError as error:
        raise InvalidInputError(f"Could not read the script {path}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        words = "".join(traceback.format_exception_only(error)).rstrip()
        raise InvalidInputError(f"{path} is not valid Python:\n{words}") from error
    doc = ast.get_docstring(tree) or ""
    source, flags = read_source(tree, path), tuple(_flags(tree))
    return Template(
        name=_template_name(path) if is_template(str(path)) else path.name,
        summary=doc.split("\n\n")[0].replace("\n", " "),
        path=str(path),
        flags=flags,
        frameworks=source.frameworks,
        usage="\n\n".join(doc.split("\n\n")[1:]),
        is_plain_keras=source.is_plain_keras and all(flag.name != "--strategy" for flag in flags),
        uses_keras=source.uses_keras,
        needs_xla=source.needs_xla,
        is_for_tpuctl=stated_frameworks(tree) is not None,
    )


def write_template(name: str, folder: Path) -> Written:
    """Copy a template into a folder; never overwrites a file."""
    source = find_template(name)
    target = folder / source.name
    if target.exists():
        raise AlreadyExistsError(
            f"{target} exists; nothing was written.", hint="Choose another folder."
        )
    write_atomically(target, source.read_bytes())
    return Written(str(target), f"python {target} --data fake --steps 2")


def is_template(script: str) -> bool:
    """Whether a script is one of the templates rather than the user's file."""
    return Path(script).parent == _folder()


def _folder() -> Path:
    """Return the templates folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(tpuctl.__file__).parent
    packaged = package / "_templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


def _template_name(path: Path) -> str:
    return path.stem.replace("_", "-")


def _flags(tree: ast.Module) -> list[Flag]:
    """Find every `add_argument("--name", ...)` in a script."""
    flags = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "add_argument":
            continue
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        flags += [
            Flag(
                name,
                str(_literal(said.get("help"), "")),
                _type(said),
                tuple(str(choice) for choice in _literal(said.get("choices"), ())),
                _default(said.get("default")),
            )
            for name in names
            if isinstance(name, str) and name.startswith("--")
        ]
    return flags


def _default(node: ast.expr | None) -> str:
    value = _literal(node, "") or _literal(node, None)
    return "" if value is None else str(value)


def _type(said: Mapping[str | None, ast.expr]) -> str:
    action = ast.unparse(said["action"]) if "action" in said else ""
    if kind := next((kind for word, kind in _SWITCHES.items() if word in action), ""):
        return kind
    return ast.unparse(said["type"]) if "type" in said else "str"


def _literal(node: ast.expr | None, default: Any) -> Any:
    """Evaluate a literal; return `default` for other expressions and other types."""
    try:
        value = ast.literal_eval(node) if node else default
    except (ValueError, TypeError):
        return default
    return value if isinstance(value, str) == isinstance(default, str) else default
