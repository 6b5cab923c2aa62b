"""TensorFlow's own profiler as the one that traces."""

from pathlib import Path

import tensorflow as tf

from tpuctl.errors import ProfilerError

# Operations and iterators, without the runtime's inner workings.
HOST_LEVEL = 2


class TensorFlowProfiler:
    """A `Profiler` for pipelines of tf.data in this process."""

    def __init__(self) -> None:
        self._folder = Path()

    def start(self, folder: Path) -> None:
        """Begin to record the host; no device and no Python function is traced."""
        self._folder = folder
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=HOST_LEVEL, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(str(folder), options=options)
        except tf.errors.AlreadyExistsError as error:
            raise ProfilerError("the program has a profiler of its own running.") from error
        except (tf.errors.OpError, AttributeError, RuntimeError, TypeError, OSError) as error:
            raise ProfilerError(f"TensorFlow's profiler does not start: {error}") from error

    def stop(self) -> Path:
        """End, and name the file that was written."""
        try:
            tf.profiler.experimental.stop()
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            raise ProfilerError(f"TensorFlow's profiler gave nothing: {error}") from error
        found = next(self._folder.rglob("*.xplane.pb"), None)
        if found is None:
            raise ProfilerError(f"TensorFlow's profiler wrote nothing to {self._folder}.")
        return found
