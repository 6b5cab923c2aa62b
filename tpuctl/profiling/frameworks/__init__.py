"""Framework adapters: tf.data, Grain, PyTorch loaders and plain Python iterables."""
