"""One module per runtime: each says whether it is the one, and what shows it."""

from tpuctl.runtime.platforms import cloud_tpu, colab, gke, kaggle, others
from tpuctl.runtime.platforms.scene import Platform, Scene

# The order matters: Kaggle's images are built from Colab's, so that Colab's marks are there too.
_PROBES = (
    kaggle.probe,
    colab.probe_enterprise,
    colab.probe,
    gke.probe,
    others.probe_notebooks,
    cloud_tpu.probe,
    others.probe_legacy_node,
    others.probe_gce,
)


def find_platform(scene: Scene) -> Platform:
    """Name the runtime: the first probe that recognises it."""
    for probe in _PROBES:
        if platform := probe(scene):
            return platform
    return others.workstation(scene)
