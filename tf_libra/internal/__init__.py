"""Private helpers shared by all other packages."""
