"""Opens the database that the settings name, for the service and for the operator's commands."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from runtimed.settings import CommandError, Settings
from runtimed.state_folder import StateFolder
from runtimed.store.database import Database, open_database, sqlite_url


async def open_store(settings: Settings) -> Database:
    """The settings' database. Raises CommandError."""
    folder = StateFolder(settings.state_dir)
    if not settings.database_url:
        folder.make_private(folder.database)
    url = settings.database_url or sqlite_url(folder.database)
    try:
        return await open_database(url)
    except SQLAlchemyError as error:
        raise CommandError(f"the database cannot be opened: {error.__cause__ or error}") from error
