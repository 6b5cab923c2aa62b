"""Every place that has TPUs, behind one port: Cloud TPU, Colab, Kaggle, your own hosts."""
