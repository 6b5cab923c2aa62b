"""Pipelines written in Python: what each function costs, in whatever process it runs."""
