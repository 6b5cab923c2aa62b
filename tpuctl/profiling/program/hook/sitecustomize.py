"""Imported when Python starts, because `profile run -- CMD` put this folder on the path."""

import importlib
import os
import sys


def _import_next() -> None:
    """Import the sitecustomize that this one shadows, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


_import_next()
if os.environ.get("TPUCTL_PROFILE_FOLDER"):
    try:
        from tpuctl.profiling.program.start import record_this_process

        record_this_process(os.environ["TPUCTL_PROFILE_FOLDER"])
    except Exception as error:
        # The program has to run even if it cannot be profiled.
        sys.stderr.write(f"tpuctl: this program is not profiled: {error}\n")
