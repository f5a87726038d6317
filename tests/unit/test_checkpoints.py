"""The tree of a thread as checkpoints."""

from __future__ import annotations

from pilothouse.core.checkpoints import Branch, checkpoints
from pilothouse.messages import Message, Text
from pilothouse.records import HistoryMessage, Parent, RunEntry


def run(name: str, at: int, *own: str, parent: Parent | None = None, status: str = "completed") -> Branch:
    """`own`: ids of messages; those that begin with u are the user's."""
    roles = {"u": "user", "a": "assistant", "t": "tool"}
    messages = [
        HistoryMessage(Message(item, roles[item[0]], (Text(f"text of {item}"),)), name, 1) for item in own
    ]
    entry = RunEntry(name, "thread", "b", "d", "terminal", status, 5, at, at, parent=parent)
    return Branch(entry, messages)


def shape(*branches: Branch) -> dict[str, tuple[object, object]]:
    history = checkpoints(branches[::-1]).history
    assert [item.id for item in history] == [branch.entry.run_id for branch in branches[::-1]]
    return {item.id: (item.values["parent"], item.values["siblings"]) for item in history}


def test_a_line_of_runs() -> None:
    """AG-175: newest first; a label is what the user said; each answer leads to where it was the last one."""
    line = (
        run("r1", 1, "u1", "a1", "t1", "a2"),
        run("r2", 2, "u2", "a3", parent=Parent("r1")),
        run("r3", 3, "u3", parent=Parent("r2"), status="failed"),
    )
    found = checkpoints(line[::-1])
    assert [item.label for item in found.history] == ["text of u3", "text of u2", "text of u1"]
    assert {name: item.id for name, item in found.by_message.items()} == {"a2": "r1", "a3": "r3"}
    assert [item.values["status"] for item in found.history] == ["failed", "completed", "completed"]
    assert shape(*line) == {"r1": (None, ["r1"]), "r2": ("r1", ["r2"]), "r3": ("r2", ["r3"])}


def test_what_answers_again_stands_beside_and_a_retry_behind() -> None:
    """AG-176: regenerated and edited runs under their common parent; a retry under the run that failed."""
    tree = (
        run("r1", 1, "u1", "a1"),
        run("r2", 2, "u2", "a2", parent=Parent("r1")),
        run("again", 3, "a3", parent=Parent("r2", "u2")),  # regenerated, from where u2 stands
        run("once more", 4, "a4", parent=Parent("r2", "u2")),
        run("edited", 5, "u3", parent=Parent("r1"), status="failed"),
        run("retried", 6, "a5", parent=Parent("edited", "u3")),
    )
    beside = ["r2", "again", "once more", "edited"]
    assert shape(*tree) == {
        "r1": (None, ["r1"]),
        **{name: ("r1", beside) for name in beside},
        "retried": ("edited", ["retried"]),
    }
    found = checkpoints(tree[::-1])
    labels = {item.id: item.label for item in found.history}
    assert labels["again"] == labels["once more"] == "text of u2"
    assert labels["retried"] == "text of u3"
    assert {name: item.id for name, item in found.by_message.items()} == {
        "a1": "edited",  # which had no answer of its own
        "a2": "r2",
        "a3": "again",
        "a4": "once more",
        "a5": "retried",
    }


def test_a_cut_further_up_the_path_counts() -> None:
    """AG-175: what a run hangs on may have been said by a run before its parent."""
    tree = (
        run("r1", 1, "u1", "a1"),
        run("r2", 2, "u2", "a2", parent=Parent("r1")),
        run("r3", 3, "u3", parent=Parent("r2", "a1"), status="failed"),
    )
    assert checkpoints(tree[::-1]).by_message["a1"].id == "r3"


def test_a_missing_parent_breaks_nothing() -> None:
    """AG-176: what hung on it are roots."""
    assert shape(
        run("r2", 2, "u2", "a2", parent=Parent("gone")), run("r3", 3, "u3", parent=Parent("gone", "x"))
    ) == {
        "r2": (None, ["r2", "r3"]),
        "r3": (None, ["r2", "r3"]),
    }


def test_long_words_are_shortened() -> None:
    long = HistoryMessage(Message("u", "user", (Text("many  words\n" * 40),)), "r", 1)
    entry = RunEntry("r", "thread", "b", "d", "terminal", "completed", 5, 1, 1)
    (item,) = checkpoints([Branch(entry, [long])]).history
    assert len(item.label) == 80
    assert item.label.startswith("many words many")
    assert item.label.endswith("…")
