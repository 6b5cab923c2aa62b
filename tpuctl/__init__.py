"""tpuctl: from "is my TPU even there?" to "my training keeps the matrix unit busy".

Every command is a function of the same name: `tpuctl create` is `tpuctl.create`, and
`tpuctl profile run` is `tpuctl.profile.run`. All of them are loaded when first used.

    this machine     doctor explain config
    Getting TPUs     types quota offers create list show wait watch migrate delete gc
    workers          run cp logs jobs stop ssh top free
    input pipelines  profile data ProfileCallback
    training         templates lint launch fit bench strategy predict
    practice         demo emulator

What they return shows itself: a card in a notebook, the report with print(); `.to_dict()` is the
data of `--json`, and `.save("result.json")` or `.save("result.html")` writes it. What fails raises
a `tpuctl.TpuctlError`, whose `.hint` is the next step and `.code` the code of `--json`.
"""

import sys

if sys.argv[:1] == ["-m"] and "-m tpuctl" in " ".join(sys.orig_argv):
    # Python put the current folder first: nothing that is imported from here on may be in it.
    is_safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not is_safe and not __file__.startswith(f"{sys.path[0]}/tpuctl/"):
        del sys.path[0]

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl import data as data
    from tpuctl import demo as demo
    from tpuctl import emulator as emulator
    from tpuctl.api.cloud import create as create
    from tpuctl.api.cloud import delete as delete
    from tpuctl.api.cloud import gc as gc
    from tpuctl.api.cloud import list as list
    from tpuctl.api.cloud import migrate as migrate
    from tpuctl.api.cloud import offers as offers
    from tpuctl.api.cloud import quota as quota
    from tpuctl.api.cloud import show as show
    from tpuctl.api.cloud import wait as wait
    from tpuctl.api.launch import launch as launch
    from tpuctl.api.machine import config as config
    from tpuctl.api.machine import doctor as doctor
    from tpuctl.api.machine import explain as explain
    from tpuctl.api.machine import types as types
    from tpuctl.api.profile import ProfileCallback as ProfileCallback
    from tpuctl.api.profile import profile as profile
    from tpuctl.api.training import bench as bench
    from tpuctl.api.training import fit as fit
    from tpuctl.api.training import lint as lint
    from tpuctl.api.training import predict as predict
    from tpuctl.api.training import templates as templates
    from tpuctl.api.watch import watch as watch
    from tpuctl.api.workers import Workers as Workers
    from tpuctl.api.workers import cp as cp
    from tpuctl.api.workers import free as free
    from tpuctl.api.workers import jobs as jobs
    from tpuctl.api.workers import logs as logs
    from tpuctl.api.workers import run as run
    from tpuctl.api.workers import ssh as ssh
    from tpuctl.api.workers import stop as stop
    from tpuctl.api.workers import top as top
    from tpuctl.errors import TpuctlError as TpuctlError
    from tpuctl.notebook.magics import load_ipython_extension as load_ipython_extension
    from tpuctl.providers.gke.manifest import GkeOptions as GkeOptions
    from tpuctl.training.strategies import strategy as strategy

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazy(__name__, __file__)
__all__ = ["__version__", *_names]
