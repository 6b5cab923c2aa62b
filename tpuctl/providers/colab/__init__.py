"""Google Colab as a provider: runtimes with one TPU chip, reached over SSH, paid in units."""
