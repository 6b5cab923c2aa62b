"""Google Colab for practice: both control planes, the runtime proxy, kernels and SSH."""
