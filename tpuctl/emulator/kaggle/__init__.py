"""Kaggle: batch sessions of pushed scripts, data sets, quota and the log stream."""
