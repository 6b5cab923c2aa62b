"""Keep Keras from importing scikit-learn and Matplotlib, a third of what TensorFlow's import costs.

Keras uses them where they are, and none of our tests needs that. Tests marked `tf` put this folder
on the path of the processes that they start; programs of their own may import both.
"""

import sys
from types import FrameType


class NotForKeras:
    """A finder that finds nothing, and refuses these two to modules of Keras."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith(("importlib", __name__)):
            frame = frame.f_back
        asks = frame.f_globals.get("__name__", "") if frame else ""
        # A callback that Keras calls may import both.
        if name in ("sklearn", "matplotlib") and asks.startswith("keras.src."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotForKeras())
