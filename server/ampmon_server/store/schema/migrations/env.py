"""The script that Alembic runs for each upgrade. The connection comes from `migrations.upgrade`, not from a file."""

from __future__ import annotations

from alembic import context

from ampmon_server.store.schema.tables import metadata


context.configure(
    connection=context.config.attributes["connection"],
    # Only `alembic.command.revision`, which drafts the next revision, uses these two.
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
