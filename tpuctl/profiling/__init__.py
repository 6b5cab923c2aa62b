"""Profile input pipelines: what each stage costs, and whether the device waits for input."""
