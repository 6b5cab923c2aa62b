"""`python -m benchmarks.pipelines`."""

import sys

from benchmarks.pipelines.suite import main

main(sys.argv[1:])
