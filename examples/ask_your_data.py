"""Ask a database in plain words, and see the answer as a grid and a chart: `pilothouse serve examples/ask_your_data.py`.

The database is a small one of harbour visits, made at the first start in `harbour.db`, here. To ask one of your own, name
it: `ASK_DATABASE=sales.db`, or a URL like `postgresql+psycopg://reader@host/db`. Whatever the model writes can only read.

With a key in the environment a real model answers. Without one a stand-in knows two measures (fees, visits) and what they
can be counted by (port, month, kind of boat). Needs `pip install 'pilothouse[sql,chart]'`.
"""

import os
import random
from datetime import date, timedelta
from pathlib import Path

import apsw

from pilothouse import AgentController, provider
from pilothouse.controllers import ChartController, SQLGridController
from pilothouse.testing.scripted import ScriptedProvider, call

PORTS = ("Brest", "Cowes", "Dover", "Kinsale", "Oban")
KINDS = {"sail": 11.0, "motor": 14.0, "fishing": 9.0}


def sample(path: Path) -> Path:
    """A year of visits; the same in each run."""
    if path.exists():
        return path
    chance = random.Random(1)  # noqa: S311 - a sample, not a secret
    connection = apsw.Connection(str(path))
    connection.execute(
        "CREATE TABLE ports (id INTEGER PRIMARY KEY, name TEXT NOT NULL, berths INTEGER NOT NULL);"
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, port INTEGER NOT NULL REFERENCES ports(id), day DATE NOT NULL,"
        " kind TEXT NOT NULL, length REAL NOT NULL, nights INTEGER NOT NULL, fee DECIMAL(8, 2) NOT NULL)"
    )
    with connection:
        connection.executemany(
            "INSERT INTO ports VALUES (?, ?, ?)", [(at, name, 20 * at) for at, name in enumerate(PORTS, 1)]
        )
        for _ in range(1_500):
            kind = chance.choice(list(KINDS))
            length = round(chance.gauss(KINDS[kind], 2), 1)
            nights = chance.randint(1, 5)
            day = date(2025, 1, 1) + timedelta(days=min(364, int(chance.gauss(200, 70)) % 365))
            fee = round(nights * length * 2.4, 2)
            row = (chance.randint(1, len(PORTS)), day.isoformat(), kind, length, nights, fee)
            connection.execute(
                "INSERT INTO visits (port, day, kind, length, nights, fee) VALUES (?, ?, ?, ?, ?, ?)", row
            )
    connection.close()
    return path


DATABASE = os.environ.get("ASK_DATABASE") or sample(Path("harbour.db"))

MEASURES = {"fee": ("ROUND(SUM(v.fee), 2)", "fees"), "visit": ("COUNT(*)", "visits")}
GROUPS = {
    "month": ("strftime('%Y-%m', v.day)", "month"),
    "kind": ("v.kind", "kind"),
    "port": ("p.name", "port"),
}


def stand_in(request):
    """Plays the model: one query for the grid and the chart, then the look of the chart, then a sentence."""
    asked = next(message.text for message in reversed(request.messages) if message.role == "user").lower()
    since = []
    for message in reversed(request.messages):
        if message.role == "user":
            break
        since += [part.tool for part in message.tool_calls]
    measure, what = next((found for word, found in MEASURES.items() if word in asked), MEASURES["visit"])
    group, by = next((found for word, found in GROUPS.items() if word in asked), GROUPS["port"])
    if not any(word in asked for word in (*MEASURES, *GROUPS)):
        return (
            "I am a stand-in without a key. Ask me for *fees by port*, *visits by month*, *fees by kind*, …"
        )
    query = (
        f"SELECT {group} AS {by}, {measure} AS {what} FROM visits v JOIN ports p ON p.id = v.port "
        f"GROUP BY {group} ORDER BY {group}"
    )
    if "grid__query" not in since:
        return [
            call("grid__query", {"query": query, "title": f"{what.title()} by {by}"}),
            call("chart__data", {"query": query}),
        ]
    if "chart__spec" not in since:
        spec = {
            "title": f"{what.title()} by {by}",
            "mark": "line" if by == "month" else "bar",
            "encoding": {
                "x": {"field": by, "type": "ordinal", "title": by.title()},
                "y": {"field": what, "type": "quantitative", "title": what.title()},
            },
        }
        return [call("chart__spec", {"spec": spec})]
    return f"Here are the {what} by {by}, as a grid and a chart."


def model():
    """The model of a key that is set, else the stand-in."""
    for key, name in (
        ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5"),
        ("OPENAI_API_KEY", "openai:gpt-5-mini"),
    ):
        if os.environ.get(key):
            return provider(name)
    return ScriptedProvider(stand_in, repeat=True)


agent = AgentController(
    model(),
    # Functions that make them: each conversation has a grid and a chart of its own.
    controllers=[lambda: SQLGridController(DATABASE), lambda: ChartController(DATABASE)],
    system_prompt="You answer questions about the database by a grid and, where that helps, a chart. Be brief.",
)
