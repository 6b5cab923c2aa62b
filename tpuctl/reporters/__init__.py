"""Results as text, JSON and HTML. Nothing here measures, decides or prints."""
