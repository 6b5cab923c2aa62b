"""Kaggle: batch sessions on a TPU v5e-8 for which a verified account has some hours a week."""
