"""Starting a training with the right framework and the right strategy."""
