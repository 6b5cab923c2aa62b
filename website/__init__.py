"""What the documentation site is made of beside docs/: pages generated from the code."""
