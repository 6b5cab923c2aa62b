"""TPUs on Compute Engine, behind the port of `tpuctl.cloud`."""
