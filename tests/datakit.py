"""The same small database in SQLite, DuckDB and Postgres, and what it looks like from outside."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
import duckdb
import psycopg

from hostile import SCHEMA
from postgres_server import shared_dsn

KINDS = ("sqlite", "duckdb", "postgres")


@dataclass
class Place:
    """A database: what a controller is given, and a picture of all that it holds."""

    kind: str
    source: str
    picture: Callable[[], object]
    remove: Callable[[], object] = lambda: None


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sqlite_place(folder: Path, script: str = SCHEMA, name: str = "data.db") -> Place:
    path = folder / name
    connection = apsw.Connection(str(path))
    connection.execute(script)
    connection.close()
    return Place("sqlite", str(path), lambda: files(folder))


def duckdb_place(folder: Path, script: str = SCHEMA) -> Place:
    path = folder / "data.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(script)
    return Place("duckdb", str(path), lambda: files(folder))


def postgres_place(folder: Path, script: str = SCHEMA) -> Place:
    """A database of its own on the shared server."""
    name = f"data_{uuid.uuid4().hex[:12]}"
    dsn = shared_dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    own = dsn.replace("/postgres?", f"/{name}?")
    with psycopg.connect(own, autocommit=True) as admin:
        admin.execute(script)

    def picture() -> object:
        with psycopg.connect(own) as looking:
            tables = looking.execute(
                "SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') ORDER BY 1, 2"
            ).fetchall()
            rows = [
                looking.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
                for table in ("customers", "orders")
            ]
            roles = looking.execute("SELECT rolname FROM pg_roles ORDER BY 1").fetchall()
            functions = looking.execute("SELECT count(*) FROM pg_proc").fetchall()
            rights = looking.execute("SELECT relacl::text FROM pg_class WHERE relname = 'orders'").fetchall()
        return tables, rows, roles, functions, rights, files(folder)

    def remove() -> None:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    return Place("postgres", own.replace("postgresql://", "postgresql+psycopg://"), picture, remove)


PLACES: dict[str, Callable[..., Place]] = {
    "sqlite": sqlite_place,
    "duckdb": duckdb_place,
    "postgres": postgres_place,
}
