"""One module per migration, in order of its number."""
