"""Runs the migrations on the connection that the store hands over; never makes one of its own."""

from alembic import context

import runtimed.store.money_schema  # noqa: F401 - its tables are part of the metadata
from runtimed.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
