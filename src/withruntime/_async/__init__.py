"""The client for asyncio. This is the one that people edit; `_sync` is generated from it by tools/unasync.py."""
