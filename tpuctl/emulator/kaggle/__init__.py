"""An emulator of Kaggle: batch sessions of scripts, data sets, quota and log streams."""
