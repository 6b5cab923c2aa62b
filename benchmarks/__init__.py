"""Every figure tpuctl promises, measured as a ratio with both sides in one run."""
