"""Pages of docs/ that are written by a program."""
