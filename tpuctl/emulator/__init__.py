"""A Cloud TPU service of your own, to practise on: the real API, no real TPU, no bill."""
