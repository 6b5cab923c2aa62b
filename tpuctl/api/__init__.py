"""The public Python functions, which the commands call."""
