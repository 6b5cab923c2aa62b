"""An emulator of Google Colab: both control planes, the runtime proxy, kernels and SSH."""
