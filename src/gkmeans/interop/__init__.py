"""Other libraries, both ways."""
