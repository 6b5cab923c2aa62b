"""The checks of `tpuctl lint`, a module per family of rules."""
