"""Keep TensorFlow from importing Keras and JAX, and Keras from scikit-learn and Matplotlib.

They use them where they are, and none of our tests needs that; it is half of what TensorFlow's
import costs. TensorFlow loads Keras later, when it is asked for. Tests marked `tf` put this folder
on the path of the processes that they start; programs of their own may import all of them.
"""

import sys
from types import FrameType

DO_WITHOUT = {
    ("keras", "tensorflow"),
    ("jax", "tensorflow.lite.python.util"),
    ("sklearn", "keras.src"),
    ("matplotlib", "keras.src"),
}


class NotForThem:
    """A finder that finds nothing, and refuses modules to those that do without them."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith(("importlib", __name__)):
            frame = frame.f_back
        asks = frame.f_globals.get("__name__", "") if frame else ""
        # A callback that Keras calls may import them.
        who = "keras.src" if asks.startswith("keras.src.") else asks
        if (name, who) in DO_WITHOUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotForThem())
