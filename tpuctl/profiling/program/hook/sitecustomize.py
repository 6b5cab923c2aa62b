"""Python imports this at its start because `profile run -- CMD` put its folder on the path."""

import importlib
import os
import sys


def _hand_on() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


_hand_on()
if os.environ.get("TPUCTL_PROFILE_FOLDER"):
    try:
        from tpuctl.profiling.program.start import begin_here

        begin_here(os.environ["TPUCTL_PROFILE_FOLDER"])
    except Exception as error:
        # A program has to run whether or not it can be watched.
        sys.stderr.write(f"tpuctl: this program is not watched: {error}\n")
