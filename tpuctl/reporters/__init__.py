"""Results in, text or JSON or HTML out. Nothing here measures, decides or prints."""
