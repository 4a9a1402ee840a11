"""The client for threads, generated from `_async` by tools/unasync.py; only `_io.py` is written by hand."""
