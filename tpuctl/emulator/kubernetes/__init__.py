"""An emulated Kubernetes API with TPU nodes and JobSets, whose pods are local processes."""
