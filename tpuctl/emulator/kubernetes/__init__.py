"""A Kubernetes API with TPU nodes and JobSets, whose pods are processes of this machine."""
