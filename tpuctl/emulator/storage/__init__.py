"""Cloud Storage's JSON API over HTTP: buckets and objects, on this machine's disk."""
