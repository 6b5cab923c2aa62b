"""What is known of this machine, for failures whose fix depends on where they happen."""

from functools import cache

from tpuctl.diagnosis.explain import Here
from tpuctl.runtime.detect import detect
from tpuctl.runtime.live import live_machine

_NOTEBOOK_SERVICES = ("colab", "kaggle")


@cache
def this_machine() -> Here | None:
    """Describe this machine if it has a TPU or is a hosted notebook.

    On any other machine, a text is most likely about another one.
    """
    machine = live_machine()
    found = detect(machine)
    has_tpu = found.accelerator in ("tpu", "tpu-remote")
    if not has_tpu and not found.runtime.startswith(_NOTEBOOK_SERVICES):
        return None
    return Here(found.runtime, dict(machine.packages))
