"""psycopg, or the error that says what to install. No other module imports it, so nothing needs it until a store does."""

from __future__ import annotations

from milepost.errors import MissingExtraError

try:
    import psycopg
    from psycopg import conninfo, pq, sql
except ImportError as exc:  # psycopg is missing, or the libpq that its pure Python form needs
    raise MissingExtraError(
        f"a PostgreSQL store needs the package psycopg ({exc}): pip install 'psycopg[binary]' 'milepost[postgres]'",
        extra="postgres",
    ) from exc

__all__ = ["conninfo", "pq", "psycopg", "sql"]
