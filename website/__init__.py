"""What the documentation site is made of besides docs/: pages generated from the code."""
