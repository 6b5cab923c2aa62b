"""The command line: each command reads options, calls a public function, shows its result."""
