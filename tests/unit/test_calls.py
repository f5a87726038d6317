"""The effect ledger as a table: which fact is legal for a call when (run-controller §3.14)."""

from __future__ import annotations

import itertools

import pytest

from pilothouse.commands import Allow, Deny, ExternalResult, InputAnswer, Request
from pilothouse.core import calls
from pilothouse.core.calls import (
    MOVES,
    CallState,
    apply,
    arguments_digest,
    idempotency_key,
    judge,
    operation_digest,
    propose,
    settle,
)
from pilothouse.events import (
    CallFinished,
    CallObserved,
    CallStarted,
    Fact,
    RequestClosed,
    RequestOpened,
    RequestResolved,
)
from pilothouse.messages import Message, Text, ToolCall

ARGS = {"port": "Cuxhaven"}
DIGEST = arguments_digest(ARGS)
OPERATION = operation_digest("tide", DIGEST, "non_idempotent")


def proposed(**changes: object) -> CallState:
    return propose(ToolCall("c1", "tide", ARGS, **changes), turn=1)


def started_fact(**changes: object) -> CallStarted:
    values = {"call_id": "c1", "attempt": 1, "tool": "tide", "arguments_digest": DIGEST, "key": "k"}
    return CallStarted(**(values | changes))


def ask(kind: str = "approval", request_id: str = "r1") -> RequestOpened:
    return RequestOpened(Request(request_id, kind, call_id="c1", operation_digest=OPERATION))


def ended(outcome: str, attempt: int = 0) -> CallFinished:
    return CallFinished("c1", outcome, attempt=attempt)


def drive(call: CallState, *facts: Fact) -> CallState:
    for fact in facts:
        assert judge(call, fact) == ""
        call = apply(call, fact)
    return call


STATES = {
    "proposed": proposed(),
    "awaiting": drive(proposed(), ask()),
    "started": drive(proposed(), started_fact()),
    "observed": drive(proposed(), started_fact(), CallObserved("c1", 1, "returned")),
    "finished": drive(proposed(), started_fact(), ended("succeeded", 1)),
}
FACTS = {
    RequestOpened: ask("input", "r9"),
    RequestResolved: RequestResolved("r1", Allow()),
    RequestClosed: RequestClosed("r1", "expired"),
    CallStarted: started_fact(),
    CallObserved: CallObserved("c1", 1, "returned"),
    CallFinished: ended("cancelled"),
}


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(STATES, FACTS)))
def test_a_fact_outside_the_row_of_a_state_is_illegal_and_named(state: str, kind: type[Fact]) -> None:
    """EF: each pair of state and fact is in the table or refused with a readable text."""
    why = judge(STATES[state], FACTS[kind])
    if kind not in MOVES[state]:
        assert why == f"call c1 cannot take {kind.__struct_config__.tag} while {state}"
    else:
        assert "cannot take" not in why


def test_a_call_lives_through_approval_start_observation_and_result() -> None:
    """The whole way, with the arguments that run kept from the start on."""
    call = drive(proposed(), ask(), RequestResolved("r1", Allow()))
    assert call.state == "awaiting"
    assert call.allowed
    call = drive(call, started_fact(approved_by="r1"), CallObserved("c1", 1, "returned", (Text("ok"),)))
    assert (call.state, call.attempt) == ("observed", 1)
    call = drive(call, ended("succeeded", 1))
    assert (call.state, call.outcome, call.observed) == ("finished", "succeeded", None)


def test_a_start_needs_the_allow_of_exactly_this_operation() -> None:
    """EF-4: not before the answer, not by another request, not with other arguments, not after a denial."""
    waiting = STATES["awaiting"]
    assert "approval is not given" in judge(waiting, started_fact(approved_by="r1"))
    denied = drive(waiting, RequestResolved("r1", Deny("no")))
    assert "approval is not given" in judge(denied, started_fact(approved_by="r1"))
    allowed = drive(waiting, RequestResolved("r1", Allow()))
    assert "not by None" in judge(allowed, started_fact())
    other = started_fact(approved_by="r1", arguments={"port": "x"}, arguments_digest="0")
    assert "not what was allowed" in judge(allowed, other)
    assert "no request r1" in judge(proposed(), started_fact(approved_by="r1"))


def test_an_edit_of_the_person_is_what_runs() -> None:
    """RC-42: edited arguments have their own digest."""
    edited = {"port": "Husum"}
    call = drive(STATES["awaiting"], RequestResolved("r1", Allow(arguments=edited)))
    start = started_fact(approved_by="r1", arguments=edited, arguments_digest=arguments_digest(edited))
    assert drive(call, start).arguments == edited


@pytest.mark.parametrize("effect", ["read", "idempotent", "human", "non_idempotent"])
def test_only_a_repeatable_call_is_entered_again(effect: str) -> None:
    """EF-5: attempt 2 of a non-idempotent call is illegal unless the first provably did not happen."""
    first = drive(proposed(), started_fact(effect=effect))
    second = started_fact(effect=effect, attempt=2)
    assert (judge(first, second) == "") == (effect != "non_idempotent")
    undone = drive(first, CallObserved("c1", 1, "reconciled", not_run=True))
    assert drive(undone, second).attempt == 2
    done = drive(first, CallObserved("c1", 1, "returned"))
    assert "nobody knows" in judge(done, second)


@pytest.mark.parametrize(
    "change",
    [{"tool": "other"}, {"arguments_digest": "0"}, {"effect": "read"}, {"key": "other"}, {"attempt": 3}],
)
def test_another_attempt_is_the_same_operation(change: dict[str, object]) -> None:
    """EF-3, EF-5: same tool, arguments, effect, key, and the next number."""
    call = drive(proposed(), started_fact(effect="idempotent"))
    assert judge(call, started_fact(**({"effect": "idempotent", "attempt": 2} | change)))


def test_unreadable_arguments_are_never_run() -> None:
    """PV-6."""
    call = propose(ToolCall("c1", "tide", raw_arguments="{", args_error="cut"))
    assert "not a JSON object" in judge(call, started_fact())
    assert judge(call, ended("refused")) == ""


ENDS = {
    "proposed": {"refused", "cancelled"},
    "awaiting": {"refused", "cancelled"},
    "started": {"succeeded", "failed", "cancelled", "unknown"},
    "observed": {"succeeded", "failed", "cancelled", "unknown"},
    "finished": set(),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_ends(state: str) -> None:
    """EF-2: what did not run can only be refused or cancelled, what ran never is refused, and no call ends twice."""
    call = STATES[state]
    legal = {
        outcome
        for outcome in ("succeeded", "failed", "cancelled", "refused", "unknown")
        if not judge(call, ended(outcome, call.attempt))
    }
    assert legal == ENDS[state]


def test_an_external_result_ends_a_call_that_never_started_here() -> None:
    """TL-16: the client's answer is the result."""
    call = drive(proposed(), ask("external"))
    assert judge(call, ended("succeeded"))
    assert "does not answer" in judge(call, RequestResolved("r1", InputAnswer("x")))
    answered = drive(call, RequestResolved("r1", ExternalResult((Text("ok"),))))
    assert drive(answered, ended("succeeded")).outcome == "succeeded"


def test_what_is_settled_says_only_what_is_known() -> None:
    """RC-27, EF table: not run is cancelled, perhaps run is unknown, seen is what was seen."""
    assert settle(STATES["proposed"], "run_ended").outcome == "cancelled"
    assert settle(STATES["awaiting"], "run_ended").outcome == "cancelled"
    unknown = settle(STATES["started"], "run_ended")
    assert (unknown.outcome, unknown.content) == ("unknown", (Text(calls.UNKNOWN_TEXT),))
    assert settle(STATES["observed"], "run_ended").outcome == "succeeded"
    late = drive(STATES["started"], CallObserved("c1", 1, "timed_out"))
    assert settle(late, "run_ended").outcome == "unknown"
    undone = drive(STATES["started"], CallObserved("c1", 1, "reconciled", not_run=True))
    assert settle(undone, "run_ended").outcome == "cancelled"
    foreign = propose(ToolCall("c1", "tide"), mediated=False)
    assert settle(foreign, "run_ended").outcome == "unknown"


@pytest.mark.parametrize("state", [state for state in STATES if state != "finished"])
def test_what_settles_a_call_is_legal_for_it(state: str) -> None:
    """RC-27: the writer's own settling never violates the ledger."""
    call = STATES[state]
    assert judge(call, settle(call, "run_ended")) == ""


def test_a_running_tool_may_ask_for_input_and_stays_started() -> None:
    """TL-12: the request of a human tool is not a step of its call."""
    call = drive(STATES["started"], ask("input", "r5"), RequestResolved("r5", InputAnswer("yes")))
    assert (call.state, call.request_id) == ("started", None)


def test_identity_does_not_depend_on_the_order_of_keys() -> None:
    """EF-3, LP-39: canonical arguments."""
    assert arguments_digest({"a": 1, "b": 2}) == arguments_digest({"b": 2, "a": 1})
    assert idempotency_key("r", "c", DIGEST) != idempotency_key("r", "c2", DIGEST)


def test_a_result_is_a_tool_message_with_an_id_of_its_call() -> None:
    """EF-2."""
    end = CallFinished("c1", "failed", (Text("boom"),), True)
    assert calls.result_message(end) == Message(
        "result:c1", "tool", (Text("boom"),), call_id="c1", is_error=True
    )


def test_a_message_proposes_its_calls_in_order() -> None:
    """LP-9."""
    message = Message("m", "assistant", (Text("x"), ToolCall("a", "t"), ToolCall("b", "t")))
    assert [(call.call_id, call.index, call.turn) for call in calls.proposals(message, turn=3)] == [
        ("a", 0, 3),
        ("b", 1, 3),
    ]


def test_an_approval_that_named_no_operation_starts_nothing_of_ours() -> None:
    """EF-4: the allow has the digest of the operation; what a foreign agent tells of is only observed."""
    asked = RequestOpened(Request("r1", "approval", call_id="c1"))
    call = drive(proposed(), asked, RequestResolved("r1", Allow()))
    assert "named no operation" in judge(call, started_fact(approved_by="r1"))
    assert judge(call, started_fact(approved_by="r1", mediated=False)) == ""
    assert "first attempt" in judge(call, started_fact(approved_by="r1", mediated=False, attempt=2))


def test_what_was_allowed_may_still_be_run_somewhere_else() -> None:
    """An approval comes before an external result; nothing else is asked of a call that waits."""
    allowed = drive(STATES["awaiting"], RequestResolved("r1", Allow()))
    elsewhere = drive(allowed, ask("external", "r2"))
    assert (elsewhere.state, elsewhere.request_id, elsewhere.request_open) == ("awaiting", "r2", True)
    done = drive(elsewhere, RequestResolved("r2", ExternalResult((Text("ok"),))))
    assert drive(done, ended("succeeded")).outcome == "succeeded"
    for call, fact in ((STATES["awaiting"], ask("external", "r2")), (allowed, ask("approval", "r2"))):
        assert "approval is not given" in judge(call, fact)


def test_a_call_takes_the_answer_of_its_own_request() -> None:
    """RC-25: of that request, once, and of its kind; the end of another one changes nothing."""
    waiting = STATES["awaiting"]
    assert "not what it waits for" in judge(waiting, RequestResolved("r2", Allow()))
    answered = drive(waiting, RequestResolved("r1", Allow()))
    assert "not what it waits for" in judge(answered, RequestResolved("r1", Allow()))
    assert "does not answer" in judge(waiting, RequestResolved("r1", InputAnswer(1)))
    assert "does not answer" in judge(drive(proposed(), ask("external")), RequestResolved("r1", Allow()))
    assert drive(waiting, RequestClosed("r2", "expired")) == waiting
    assert not drive(waiting, RequestClosed("r1", "expired")).request_open


def test_a_first_attempt_has_number_one_and_the_tool_that_was_proposed() -> None:
    """§3.14: spaces around a name that a model gave are forgiven."""
    assert "number 1" in judge(proposed(), started_fact(attempt=2))
    assert "was proposed for tide" in judge(proposed(), started_fact(tool="other"))
    spaced = propose(ToolCall("c1", " tide ", ARGS))
    assert judge(spaced, started_fact()) == ""


@pytest.mark.parametrize(
    ("effect", "status", "outcome"),
    [("read", "cancelled", "cancelled"), ("idempotent", "timed_out", "failed"), ("human", "timed_out", "failed"),
     ("non_idempotent", "cancelled", "unknown"), ("non_idempotent", "timed_out", "unknown")],
)  # fmt: skip
def test_an_unconfirmed_end_is_known_only_where_a_repeat_would_not_matter(
    effect: str, status: str, outcome: str
) -> None:
    """EF, LP-44: what was seen of a call that was stopped."""
    call = drive(proposed(), started_fact(effect=effect), CallObserved("c1", 1, status))
    assert settle(call, "run_ended").outcome == outcome
