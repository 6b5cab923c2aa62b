"""The IPython extension: `%tpuctl` and `%%tpuprofile`."""
