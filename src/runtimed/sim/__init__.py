"""A whole service in one process, with machines that are only values: for tests and for trying things out."""
