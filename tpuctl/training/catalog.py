"""The training templates that come with tpuctl.

Each is one readable script that runs without tpuctl; nothing here imports one.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tpuctl
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tpuctl.outcome import Outcome
from tpuctl.storage.local import write_atomically
from tpuctl.training.source import read_source


@dataclass(frozen=True)
class Flag:
    """One option of a training script: `--batch-size`, and what it says of itself."""

    name: str
    help: str
    type: str = "str"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Template(Outcome):
    """A training script: what it does, which flags it takes, which frameworks it can use.

    `frameworks` is the script's own `FRAMEWORKS = (...)` or what it imports; empty when it does
    not say. A script of plain Keras leaves the strategy to whoever runs it.
    """

    name: str
    summary: str
    path: str
    flags: tuple[Flag, ...]
    frameworks: tuple[str, ...]
    usage: str
    is_plain_keras: bool = False

    @property
    def reads_shards(self) -> bool:
        """Whether its --data is what `tpuctl data presize` makes."""
        return any(flag.name == "--data" and "of shards" in flag.help for flag in self.flags)

    @property
    def decides_alone(self) -> bool:
        """Whether neither a flag nor a scope around it can give the script a strategy."""
        return not self.is_plain_keras and all(flag.name != "--strategy" for flag in self.flags)


@dataclass(frozen=True)
class Catalog(Outcome):
    """Every template, by name."""

    templates: tuple[Template, ...]


@dataclass(frozen=True)
class Written(Outcome):
    """A file that is now the user's own."""

    path: str
    next_command: str


def list_templates() -> Catalog:
    """Describe every template."""
    return Catalog(tuple(describe_script(path) for path in sorted(_folder().glob("*.py"))))


def find_template(name: str) -> Path:
    """The script behind a template's name; raises NotFoundError."""
    path = _folder() / f"{name.replace('-', '_')}.py"
    if not path.is_file():
        names = ", ".join(_template_name(script) for script in sorted(_folder().glob("*.py")))
        raise NotFoundError(f"There is no template named {name!r}.", hint=f"Templates: {names}.")
    return path


def describe_script(path: Path) -> Template:
    """Read what a training script says of itself, without running it.

    Raises NotFoundError, or InvalidInputError where the file is no Python.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no script {path}.", hint="See the templates: tpuctl templates list"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidInputError(f"Could not read the script {path}: {error}") from error
    doc = ast.get_docstring(tree) or ""
    source, flags = read_source(tree), tuple(_flags(tree))
    return Template(
        name=_template_name(path),
        summary=doc.split("\n\n")[0].replace("\n", " "),
        path=str(path),
        flags=flags,
        frameworks=source.frameworks,
        usage="\n\n".join(doc.split("\n\n")[1:]),
        is_plain_keras=source.is_plain_keras and all(flag.name != "--strategy" for flag in flags),
    )


def write_template(name: str, folder: Path) -> Written:
    """Copy a template into a folder of the user's, never over an existing file."""
    source = find_template(name)
    target = folder / source.name
    if target.exists():
        raise AlreadyExistsError(
            f"{target} exists already; nothing was written.", hint="Choose another folder."
        )
    write_atomically(target, source.read_bytes())
    return Written(str(target), f"python {target} --data fake --steps 2")


def _folder() -> Path:
    """Inside the package in a wheel, beside it in a checkout."""
    package = Path(tpuctl.__file__).parent
    packaged = package / "_templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


def _template_name(path: Path) -> str:
    return path.stem.replace("_", "-")


def _flags(tree: ast.Module) -> list[Flag]:
    """Every `add_argument("--name", ...)` of a script."""
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
                ast.unparse(said["type"]) if "type" in said else "str",
                tuple(str(choice) for choice in _literal(said.get("choices"), ())),
            )
            for name in names
            if isinstance(name, str) and name.startswith("--")
        ]
    return flags


def _literal(node: ast.expr | None, default: Any) -> Any:
    """The value of a literal of the same kind as `default`; anything cleverer is not known."""
    try:
        value = ast.literal_eval(node) if node else default
    except (ValueError, TypeError):
        return default
    return value if isinstance(value, str) == isinstance(default, str) else default
