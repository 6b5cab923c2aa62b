"""Keep TensorFlow from importing Keras and JAX, and Keras from scikit-learn and Matplotlib.

They use them where they are, and none of our tests needs that; it is half of what TensorFlow's
import costs. TensorFlow loads Keras later, when it is asked for. Keras on JAX imports TensorFlow
only to set its seed, which takes twice as long as its own import. Tests do so in their
own process, and those marked `tf` put this folder on the path of the processes that they start;
programs of their own may import all of them.

They also look for garbage less often, and not when they end: with TensorFlow, that is a quarter of
what its import takes.
"""

import atexit
import gc
import os
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
        on_jax = os.environ.get("KERAS_BACKEND") == "jax"
        if (name, who) in DO_WITHOUT or (on_jax and (name, who) == ("tensorflow", "keras.src")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotForThem())
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)
