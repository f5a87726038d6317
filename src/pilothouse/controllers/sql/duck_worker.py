"""The child process that asks a DuckDB file: `python -m pilothouse.controllers.sql.duck_worker FILE BYTES`.

It is a process because one function of DuckDB can fill the memory (`repeat` of a `repeat`) and hears no interrupt while it
does: only a process has a limit of memory of its own, and only a process can be ended. Questions are length-prefixed JSON on
standard input, `null` stops what runs; answers are length-prefixed pickles of plain values, until the input ends.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import struct
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, BinaryIO

from ..limits import bound_memory
from .duck_settings import SETTINGS
from .rows import Limits, take


def main(path: str, memory: int) -> None:
    """Answers until the input ends; `memory` bytes are all that the process may have."""
    questions = sys.stdin.buffer
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import duckdb

    bound_memory(memory)
    connection = duckdb.connect(path, read_only=True, config={**SETTINGS})
    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions, connection, asked), daemon=True).start()
    _say(answers, ("ready", None))
    while True:
        question = asked.get()
        _say(answers, _answer(connection, question["sql"], Limits(*question["limits"])))


def _listen(questions: BinaryIO, connection: Any, asked: queue.SimpleQueue[dict[str, Any]]) -> None:
    while len(head := questions.read(4)) == 4:
        question = json.loads(questions.read(struct.unpack(">I", head)[0]))
        if question is None:
            connection.interrupt()
        else:
            asked.put(question)
    os._exit(0)  # nobody is there any more, whatever runs


def _answer(connection: Any, sql: str, limits: Limits) -> tuple[str, Any]:
    import duckdb

    try:
        statements = connection.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            return "several", None
        cursor = connection.execute(statements[0])
        columns = [(column[0], str(column[1])) for column in cursor.description]
        rows = take(columns, _plain(cursor), limits)
    except duckdb.InterruptException:
        return "stopped", None
    except (duckdb.OutOfMemoryException, MemoryError):
        return "memory", None
    except (duckdb.FatalException, duckdb.InternalException) as error:  # it may be of no use any more
        return "broken", str(error)
    except duckdb.Error as error:
        about = isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException)
        return "failed", (str(error), about)
    else:
        return "rows", (rows.columns, rows.rows, rows.more, rows.cut)


def _plain(cursor: Any) -> Iterator[tuple[Any, ...]]:
    """Rows, with times whose zone is a fixed distance: other kinds of zones are objects of libraries."""
    while (row := cursor.fetchone()) is not None:
        yield tuple([_fixed(cell) if isinstance(cell, datetime) and cell.tzinfo else cell for cell in row])


def _fixed(moment: datetime) -> datetime:
    return moment.astimezone(timezone(moment.utcoffset() or timedelta()))


def _say(answers: BinaryIO, answer: tuple[str, Any]) -> None:
    data = pickle.dumps(answer, protocol=5)
    answers.write(struct.pack(">Q", len(data)) + data)
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
