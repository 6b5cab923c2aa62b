"""tpuctl: from "is my TPU even there?" to "my training keeps the matrix unit busy"."""

__version__ = "0.1.0"
