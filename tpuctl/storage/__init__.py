"""Read and write objects in local folders and Cloud Storage buckets."""
