"""Keep a TPU alive and a job running on it: a state machine, and an edge that looks and acts.

from tpuctl.watch.verbs import watch
"""
