"""The Alembic environment; packaged, so that a service brings its own migrations."""
