"""tpuctl inside a notebook: functions that display themselves, and magics."""
