"""An emulator of Cloud Storage over HTTP, with buckets and objects on the local disk."""
