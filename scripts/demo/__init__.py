"""How the built-in demo bundle was made."""
