"""Load the user's own code, run it in a child process, and summarise its errors."""
