"""Our verifier and the reference client's, side by side over the same streams (agent-contract §5.14)."""

from __future__ import annotations

import json
import random
import shutil
import subprocess

import pytest

from nodekit import clients
from pilothouse.testing import verify_agui
from pilothouse.testing.endpoint import failed, reasoning, result, text, tool_call

START = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
END = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
STEP = [{"type": "STEP_STARTED", "stepName": "s"}, {"type": "STEP_FINISHED", "stepName": "s"}]


def sub(name: str, *events: dict) -> list[dict]:
    return [{**event, "subagentRunId": name} for event in events]


BEGUN = {"type": "SUBAGENT_STARTED", "subagentRunId": "s1", "name": "n"}
OVER = {"type": "SUBAGENT_FINISHED", "subagentRunId": "s1"}
BROKE = {"type": "SUBAGENT_ERROR", "subagentRunId": "s1", "message": "no"}
EVENTS = [
    START,
    END,
    failed("no"),
    *text("a", "x"),
    *text("b", "y"),
    *reasoning("r", "z"),
    *tool_call("c", "n", "{}", parent="a"),
    *tool_call("d", "n"),
    result("c", "1"),
    *STEP,
    {"type": "STATE_SNAPSHOT", "snapshot": {}},
    {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/n", "value": 1}]},
    {"type": "MESSAGES_SNAPSHOT", "messages": []},
    {"type": "ACTIVITY_SNAPSHOT", "messageId": "v", "activityType": "t", "content": {}},
    {"type": "CUSTOM", "name": "n", "value": 1},
    {"type": "RAW", "event": {}},
    BEGUN,
    OVER,
    BROKE,
    *sub("s1", *text("k", "child")),
]
"""One of each; the rows of the table are these in every place."""


def rows() -> list[list[dict]]:
    """Each event first, inside a run, behind each opener, behind the finish, behind an error; and whole runs."""
    found = [[event] for event in EVENTS]
    found += [[START, event] for event in EVENTS]
    found += [[START, END, event] for event in EVENTS]
    found += [[START, failed("no"), event] for event in EVENTS]
    openers = [text("a", "x")[0], reasoning("r", "z")[0], tool_call("c", "n")[0], STEP[0], BEGUN]
    found += [[START, opener, event] for opener in openers for event in EVENTS]
    found += [[START, *reasoning("r", "z")[:2], event] for event in EVENTS]
    found += [[START, *text("a", "x"), event] for event in EVENTS]
    found += [[START, BEGUN, OVER, event] for event in EVENTS]
    found += [[START, *text("a", "x"), *text("a", "again"), END], [START, END, START, *STEP, END]]
    return found


def random_rows(count: int) -> list[list[dict]]:
    rng = random.Random(20260101)
    found = []
    for _ in range(count):
        stream = [START]
        while len(stream) < 14:
            candidate = [*stream, rng.choice(EVENTS)]
            if rng.random() < 0.15 or legal(candidate):
                stream = candidate
            if not legal(stream):
                break
        found.append(stream)
    return found


def legal(events: list[dict]) -> bool:
    try:
        verify_agui(events, whole=False)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("make", [rows, lambda: random_rows(400)], ids=["rows", "random"])
def test_both_verifiers_judge_alike(make) -> None:
    """Every row of the table, legal and illegal, and random streams."""
    streams = make()
    node = shutil.which("node")
    assert node is not None, "the foreign clients need Node: ./dev test installs it"
    judged = subprocess.run(
        [node, "verify.mjs"],
        cwd=clients(),
        input=json.dumps(streams),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    theirs = json.loads(judged.stdout)
    differ = [
        (" ".join(event["type"] for event in stream), verdict.get("why", "legal"), legal(stream))
        for stream, verdict in zip(streams, theirs, strict=True)
        if verdict["legal"] != legal(stream)
    ]
    assert differ == []
    assert {verdict["legal"] for verdict in theirs} == {True, False}
