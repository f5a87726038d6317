import { describe, expect, it } from "vitest";
import { applyEvent, fromServer, markLost, newest, retryFrom, toAgui, userItem, type AguiEvent, type Transcript } from "../src/transcript";
import type { WireMessage } from "../src/wire";

const RUN = "r1";

function fold(events: AguiEvent[], from: Transcript = [], joined = false): Transcript {
  return events.reduce((items, event) => applyEvent(items, event, RUN, joined), from);
}

const started: AguiEvent = { type: "RUN_STARTED", runId: RUN };
const text = (messageId: string, ...pieces: string[]): AguiEvent[] => [
  { type: "TEXT_MESSAGE_START", messageId, role: "assistant" },
  ...pieces.map((delta) => ({ type: "TEXT_MESSAGE_CONTENT", messageId, delta })),
  { type: "TEXT_MESSAGE_END", messageId },
];
const reasoning = (messageId: string, delta: string): AguiEvent[] => [
  { type: "REASONING_MESSAGE_START", messageId, role: "reasoning" },
  { type: "REASONING_MESSAGE_CONTENT", messageId, delta },
  { type: "REASONING_MESSAGE_END", messageId },
];
const call = (toolCallId: string, parentMessageId: string, args: string): AguiEvent[] => [
  { type: "TOOL_CALL_START", toolCallId, toolCallName: "look", parentMessageId },
  { type: "TOOL_CALL_ARGS", toolCallId, delta: args },
  { type: "TOOL_CALL_END", toolCallId },
];
const result = (toolCallId: string, content: string): AguiEvent => ({
  type: "TOOL_CALL_RESULT",
  messageId: `${toolCallId}-result`,
  toolCallId,
  content,
});

const listed = (over: Partial<WireMessage> & Pick<WireMessage, "id" | "role">): WireMessage => ({
  parts: [{ type: "text", text: "hello" }],
  run_id: RUN,
  delivery: { phase: "complete", outcome: "success" },
  ...over,
});

describe("subagents", () => {
  it("keep their words out of the conversation", () => {
    const own = fold([started, ...text("m1", "Mine.")]);
    const theirs = text("m2", "Theirs.").map((event) => ({ ...event, subagentRunId: "child" }));
    expect(fold(theirs, own)).toBe(own);
  });
});

describe("a run as it streams", () => {
  it("appends each piece, also one that equals the text so far", () => {
    const [item] = fold([started, ...text("m1", "|", "|", "a")]);
    expect(item!.parts).toEqual([{ type: "text", text: "||a" }]);
    expect(item!.delivery).toEqual({ phase: "streaming", outcome: null });
  });

  it("joins reasoning, calls and text of one answer under its id, the row's key unchanged", () => {
    const before = fold([started, ...reasoning("think", "hm")]);
    const items = fold([...call("c1", "m1", "{}"), result("c1", "12"), ...text("m1", "twelve")], before);
    expect(items).toHaveLength(1);
    expect(items[0]).toMatchObject({ id: "m1", key: before[0]!.key });
    expect(items[0]!.parts.map((part) => part.type)).toEqual(["reasoning", "call", "text"]);
    expect(items[0]!.parts[1]).toMatchObject({ args: "{}", state: "succeeded", result: { text: "12" } });
  });

  it("reopens a message after a call, with later reasoning in its place", () => {
    const items = fold([...text("m1", "a"), ...call("c1", "m1", "{}"), ...reasoning("t2", "so"), ...text("m1", "b")]);
    expect(items).toHaveLength(1);
    expect(items[0]!.parts.map((part) => part.type)).toEqual(["text", "call", "reasoning", "text"]);
  });

  it("leaves untouched items the same objects", () => {
    const before = fold([started, ...text("m1", "a"), ...text("m2", "b")]);
    const after = fold([{ type: "TEXT_MESSAGE_CONTENT", messageId: "m2", delta: "c" }], before);
    expect(after[0]).toBe(before[0]);
    expect(after[1]).not.toBe(before[1]);
  });

  it("completes the earlier message when the next one starts", () => {
    const items = fold([...text("m1", "a"), ...text("m2", "b"), { type: "RUN_ERROR", code: "provider" }]);
    expect(items.map((it) => it.delivery.outcome)).toEqual(["success", "error"]);
  });

  it.each([
    [{ type: "RUN_FINISHED", outcome: { type: "success" } }, "success"],
    [{ type: "RUN_FINISHED" }, "success"],
    [{ type: "RUN_FINISHED", outcome: { type: "cancelled" } }, "aborted"],
    [{ type: "RUN_FINISHED", outcome: { type: "interrupt" } }, "paused"],
    [{ type: "RUN_ERROR", code: "outcome_unknown" }, "interrupted"],
    [{ type: "RUN_ERROR", code: "provider" }, "error"],
  ] as const)("ends by %j as %s, text intact", (terminal, outcome) => {
    const [item] = fold([...text("m1", "part"), terminal as AguiEvent]);
    expect(item!.delivery).toEqual({ phase: "complete", outcome });
    expect(item!.parts).toEqual([{ type: "text", text: "part" }]);
  });

  it("says of a call without a result that its outcome is unknown, when the run's is", () => {
    const [item] = fold([...call("c1", "m1", "{}"), { type: "RUN_ERROR", code: "outcome_unknown" }]);
    expect(item!.parts[0]).toMatchObject({ state: "unknown" });
  });

  it("shows what a running call tells, until its result", () => {
    const progress: AguiEvent = { type: "CUSTOM", name: "pilothouse.tool", value: { id: "c1", phase: "started" } };
    const running = fold([...call("c1", "m1", "{}"), progress]);
    expect(running[0]!.parts[0]).toMatchObject({ state: "running", note: undefined });
    const done = fold([result("c1", "refused: not today"), progress], running);
    expect(done[0]!.parts[0]).toMatchObject({ state: "refused" });
  });

  it("takes a question as sent once the run has started", () => {
    const [item] = fold([started], [userItem("u1", "hi")]);
    expect(item).toMatchObject({ sending: false, runId: RUN });
  });
});

describe("a run that is joined again", () => {
  it("is told from its start and shown once", () => {
    const before = fold([started, ...text("m1", "half")], [userItem("u1", "hi")]);
    const snapshot = { type: "MESSAGES_SNAPSHOT", messages: [{ id: "u1", role: "user", content: "hi" }] } as AguiEvent;
    const items = fold([started, snapshot, ...text("m1", "half", " and all")], before, true);
    expect(items.map((it) => it.id)).toEqual(["u1", "m1"]);
    expect(items[1]!.parts).toEqual([{ type: "text", text: "half and all" }]);
  });

  it("brings in what the page did not know, where it stands", () => {
    const messages = [
      { id: "u0", role: "user", content: "first" },
      { id: "u1", role: "user", content: "hi" },
    ];
    const items = fold([started, { type: "MESSAGES_SNAPSHOT", messages } as AguiEvent], [userItem("u1", "hi")], true);
    expect(items.map((it) => it.id)).toEqual(["u0", "u1"]);
  });
});

describe("snapshots", () => {
  const snapshot = (content: string): AguiEvent =>
    ({ type: "MESSAGES_SNAPSHOT", messages: [{ id: "m1", role: "assistant", content }] }) as AguiEvent;

  it("correct a final text, never rewind a streaming one, never empty one", () => {
    expect(fold([...text("m1", "helo"), snapshot("hello")])[0]!.parts).toEqual([{ type: "text", text: "hello" }]);
    expect(fold([...text("m1", "hello"), snapshot("hel")])[0]!.parts).toEqual([{ type: "text", text: "hello" }]);
    expect(fold([...text("m1", "hello"), snapshot("")])[0]!.parts).toEqual([{ type: "text", text: "hello" }]);
  });

  it("leave alone what they omit", () => {
    const items = fold([...text("m1", "a"), { type: "MESSAGES_SNAPSHOT", messages: [] }]);
    expect(items).toHaveLength(1);
  });
});

describe("what the server lists", () => {
  const withCall = [
    listed({ id: "u1", role: "user" }),
    listed({
      id: "m1",
      role: "assistant",
      parts: [{ type: "tool_call", call_id: "c1", tool: "look", arguments: { at: 1 } }],
    }),
  ];
  const answer = listed({ id: "t1", role: "tool", call_id: "c1", ledger: "refused" });

  it("folds a result into its call, with the ledger's word", () => {
    const items = fromServer([...withCall, answer]);
    expect(items).toHaveLength(2);
    expect(items[1]!.parts[0]).toMatchObject({ args: '{"at":1}', state: "refused", result: { id: "t1" } });
  });

  it("keeps the keys of rows already shown", () => {
    const shown = fold([...reasoning("think", "hm"), ...text("m1", "a")]);
    expect(fromServer([listed({ id: "m1", role: "assistant" })], shown)[0]!.key).toBe("think");
  });

  it("marks the open calls of a run whose outcome is unknown", () => {
    expect(markLost(fromServer(withCall), RUN)[1]!.parts[0]).toMatchObject({ state: "unknown" });
    expect(markLost(fromServer(withCall), "other")[1]!.parts[0]).toMatchObject({ state: "pending" });
  });

  it("is asked again from the last question or tool result", () => {
    const partial = listed({ id: "m2", role: "assistant", delivery: { phase: "complete", outcome: "error" } });
    const asked = (...items: WireMessage[]) => toAgui(retryFrom(fromServer(items))).map((it) => it.id);
    expect(asked(...withCall, answer, partial)).toEqual(["u1", "m1", "t1"]);
    expect(asked(withCall[0]!, partial)).toEqual(["u1"]);
  });
});

describe("what a request tells of the conversation", () => {
  const said = (id: string, content: string) => ({ id, role: "user" as const, content });
  const ids = (messages: { id: string }[]) => messages.map(({ id }) => id);

  it("is all of it, as long as a request may hold it", () => {
    const messages = [said("a", "1"), said("b", "2"), said("c", "3")];
    expect(newest(messages)).toEqual(messages);
    expect(newest([])).toEqual([]);
  });

  it("is the newest of a long one, never a result without its call", () => {
    const long = "x".repeat(400_000);
    const result = { id: "t", role: "tool" as const, toolCallId: "call", content: "fog" };
    expect(ids(newest([said("a", long), said("b", long), said("c", long), said("d", "new")]))).toEqual(["b", "c", "d"]);
    expect(ids(newest([said("a", long), result, said("b", long), said("c", long), said("d", "new")]))).toEqual(["b", "c", "d"]);
    expect(newest(Array.from({ length: 3_000 }, (_, n) => said(`${n}`, "x"))).length).toBe(1_000);
  });

  it("is at least what is new and the message before it", () => {
    const huge = "x".repeat(2_000_000);
    expect(ids(newest([said("a", "1"), said("b", huge), said("c", "new")]))).toEqual(["b", "c"]);
  });
});
