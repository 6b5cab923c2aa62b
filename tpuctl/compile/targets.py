"""What the word TARGET of `tpuctl fit` means."""

from pathlib import Path

from tpuctl.compile.models import Target
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.launch.catalog import describe_script, find_template
from tpuctl.usercode.function import Function, parse_function

SUPPORTED = (
    "module:function or path.py:function, a .mlir or .stablehlo file, or the name of a template"
)
FILES = (".mlir", ".stablehlo")
IN_A_TEMPLATE = "make_example"


def parse_target(text: str) -> Target:
    """Find out what to compile; raises NotFoundError or InvalidInputError."""
    if function := parse_function(text):
        return Target("function", text, function=function)
    path = Path(text)
    if path.suffix in FILES:
        if not path.is_file():
            raise NotFoundError(
                f"There is no file {text} to compile.",
                hint=f"Give its path as seen from {Path.cwd()}.",
            )
        return Target("file", text, path=str(path.resolve()))
    if path.is_file():
        hint = f"{text}:function" if path.suffix == ".py" else SUPPORTED
        raise InvalidInputError(f"{text} is a file; fit takes {SUPPORTED}.", hint=hint)
    try:
        script = find_template(text)
    except NotFoundError as error:
        hint = f"fit takes {SUPPORTED}. {error.hint}"
        raise NotFoundError(f"There is no {text!r} to compile.", hint=hint) from error
    if not {"tensorflow", "jax"} & {*describe_script(script).frameworks}:
        raise InvalidInputError(
            f"{text} is a program of PyTorch; fit compiles those of TensorFlow and JAX.",
            hint="Choose another template: tpuctl templates list",
        )
    return Target("template", text, function=Function(str(script), IN_A_TEMPLATE))
