"""The process that measures what batches cost: `python -m tpuctl.profiling.program._copying_child`.

The request comes as JSON on stdin, and the answer is the last line on stdout.
"""

import json
import os
import sys

import tensorflow as tf

from tpuctl.codec import from_plain, to_plain
from tpuctl.profiling.frameworks._tf_changes import copying_stages
from tpuctl.profiling.program.copy_cost import CopyingRequest


def main() -> None:
    """Measure, answer, and leave at once: data sets may hold the interpreter up at its end."""
    request = from_plain(CopyingRequest, json.load(sys.stdin))
    options = tf.data.Options()
    if request.deterministic is not None:
        options.deterministic = request.deterministic
    found = copying_stages(request.nodes, options, threads=request.threads)
    sys.stdout.write("\n" + json.dumps([to_plain(each) for each in found]) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
