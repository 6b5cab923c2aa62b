"""Training: choose the strategy, plan the command, run it."""
