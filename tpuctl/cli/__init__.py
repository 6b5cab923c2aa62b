"""The command line: options in, one result out. Everything else lives elsewhere."""
