"""Imported when Python starts, because `profile run -- CMD` put this folder on the path.

Nothing of tpuctl is loaded before the program imports a framework. A program may start any Python,
even one that does not know annotations of functions.
"""

import os
import sys

if sys.version_info >= (3, 10):  # noqa: UP036 (not every child is as new)
    import atexit

    from tpuctl_after_import import HOOKS, AfterImport  # type: ignore[import-not-found]

MYPY = False  # True for the type checker
if MYPY:
    from types import ModuleType  # noqa: F401 (in a comment)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.dirname(HERE)
PACKAGE = os.path.dirname(os.path.dirname(PROGRAM))
# Read before the program can change its environment.
FOLDER = os.environ.get("TPUCTL_PROFILE_FOLDER", "")
MOST_CHARACTERS = 10**5
# How Python starts the processes of multiprocessing, which inherit the path and so this hook.
WORKER_WORDS = ("--multiprocessing-fork", "from multiprocessing.resource_tracker import main")


def _import_next():
    # type: () -> object
    """Import the sitecustomize that this one shadows, if there is one; return this one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own
    return own


def _is_main_interpreter():
    # type: () -> bool
    for name in ("_interpreters", "_xxsubinterpreters"):
        was_loaded = name in sys.modules
        try:
            module = __import__(name)
        except ImportError:
            continue
        current, main = module.get_current(), module.get_main()
        if not was_loaded:
            # faulthandler lists what is loaded.
            del sys.modules[name]
        return bool(current == main)
    return True


def _load_package():
    # type: () -> None
    """Load this tpuctl, whatever else the program would find under its name."""
    from importlib.util import module_from_spec, spec_from_file_location

    file = os.path.join(PACKAGE, "__init__.py")
    spec = spec_from_file_location("tpuctl", file, submodule_search_locations=[PACKAGE])
    if spec is None or spec.loader is None:
        raise ImportError(file + " cannot be loaded")
    module = sys.modules["tpuctl"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _hook(module):
    # type: (ModuleType) -> None
    """Load tpuctl without modules from the program's folder, and let it patch the framework."""
    _leave_own()
    standard = os.path.dirname(os.__file__)
    before, path = set(sys.modules), list(sys.path)
    sys.path[:] = [each for each in path if each.startswith(standard) and "-packages" not in each]
    try:
        if "tpuctl" not in sys.modules:
            _load_package()
        from tpuctl.profiling.program.start import hook_program
    finally:
        sys.path[:] = path
        _forget_replaced(set(sys.modules) - before)
    hook_program(module, FOLDER)


def _leave_own():
    # type: () -> None
    """Raise ImportError if the program means something of its own by `import tpuctl`."""
    from importlib.machinery import PathFinder

    spec = None if "tpuctl" in sys.modules else PathFinder.find_spec("tpuctl")
    place = spec and spec.origin
    if place and not os.path.exists(os.path.join(os.path.dirname(place), "profiling")):
        raise ImportError("the program has a module of its own named tpuctl, " + place)


def _forget_replaced(names):
    # type: (set[str]) -> None
    """Let the program import its own module if it has one with the same name."""
    from importlib.machinery import PathFinder

    for name in names:
        spec = None if "." in name or name == "tpuctl" else PathFinder.find_spec(name)
        if spec and spec.origin != getattr(sys.modules[name], "__file__", spec.origin):
            del sys.modules[name]


def _note_error(folder):
    # type: (str) -> None
    """Keep the traceback that ended the program, so that it can be explained."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, KeyboardInterrupt):
        # Python ends by SIGINT if the last code from a string did; imports at exit have run some.
        try:
            exec("raise error", {"error": error})  # noqa: S102
        except KeyboardInterrupt:
            return
    if error is not None:
        from traceback import format_exception

        lines = format_exception(type(error), error, error.__traceback__)
        place = os.path.join(folder, str(os.getpid()) + ".error")
        try:
            with open(place, "w", errors="replace") as file:
                file.write("".join(lines)[-MOST_CHARACTERS:])
        except OSError:
            return  # The disk is full, or tpuctl was killed and its folder removed.


# Python 2 clears a module that nothing refers to.
OWN = _import_next()
if (
    sys.version_info >= (3, 10)
    and FOLDER
    and _is_main_interpreter()
    and not any(word in argument for argument in sys.orig_argv for word in WORKER_WORDS)
):
    sys.meta_path.insert(0, AfterImport(HOOKS, _hook))
    atexit.register(_note_error, FOLDER)
elif FOLDER and sys.version_info < (3, 10):
    try:
        with open(os.path.join(FOLDER, "python.old"), "w") as file:
            file.write(sys.version.split()[0])
    except Exception:  # noqa: S110 (in a program that has nothing to do with us)
        pass
