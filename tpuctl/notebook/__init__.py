"""tpuctl as an IPython extension."""
