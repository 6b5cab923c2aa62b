"""Compute Engine: TPU VMs as instances and as slices of managed instance groups."""
