/** The conversation as it is drawn: a pure fold of what the server lists and of AG-UI events.
 *
 * Values are immutable and untouched items keep their identity, so a view redraws only the item that changed.
 * Nothing here knows of the network, the page or the clock. */

import type { Message } from "@ag-ui/client";
import type { Delivery, Ledger, ThreadMessages, WireMessage } from "./wire";

export type CallState = "pending" | "running" | Ledger;

export interface TextPart {
  type: "text";
  text: string;
}
export interface ReasoningPart {
  type: "reasoning";
  text: string;
  open?: boolean; // still being written
}
export interface CallPart {
  type: "call";
  callId: string;
  tool: string;
  args: string; // JSON as it came; in pieces while it streams
  state: CallState;
  note?: string; // progress of a running call
  result?: { id: string; text: string };
}
export interface FilePart {
  type: "file";
  name: string;
}
export type Part = TextPart | ReasoningPart | CallPart | FilePart;

export interface Item {
  /** Names the row. Stays when the id of a reasoning message gives way to that of its answer. */
  key: string;
  id: string;
  role: "user" | "assistant" | "system";
  parts: readonly Part[];
  runId: string | null;
  delivery: Delivery;
  /** Shown before the server has taken it. */
  sending?: boolean;
  /** Reasoning or a call whose answer has not begun: what comes next joins it. */
  holder?: boolean;
}

export type Transcript = readonly Item[];

/** The members of AG-UI events that the fold reads; the protocol client has checked them. */
export interface AguiEvent {
  type: string;
  runId?: string;
  messageId?: string;
  role?: string;
  delta?: string;
  toolCallId?: string;
  toolCallName?: string;
  parentMessageId?: string;
  content?: unknown;
  name?: string;
  value?: unknown;
  code?: string;
  outcome?: { type: string };
  messages?: Message[];
  subagentRunId?: string;
}

const COMPLETE: Delivery = { phase: "complete", outcome: "success" };
const STREAMING: Delivery = { phase: "streaming", outcome: null };

// ---- what the server lists ----

/** The listed messages, tool results folded into their calls. Rows of `before` keep their keys. */
export function fromServer(listed: ThreadMessages["items"], before: Transcript = []): Transcript {
  const results = new Map<string, WireMessage>();
  for (const message of listed) if (message.role === "tool" && message.call_id) results.set(message.call_id, message);
  const keys = new Map(before.map((item) => [item.id, item.key]));
  return listed
    .filter((message) => message.role !== "tool")
    .map((message) => ({
      key: keys.get(message.id) ?? message.id,
      id: message.id,
      role: message.role as Item["role"],
      parts: message.parts.map((part) => fromWirePart(part, results, message.delivery)),
      runId: message.run_id,
      delivery: message.delivery,
    }));
}

function fromWirePart(
  part: WireMessage["parts"][number],
  results: ReadonlyMap<string, WireMessage>,
  delivery: Delivery,
): Part {
  switch (part.type) {
    case "text":
    case "reasoning":
      return { type: part.type, text: part.text };
    case "tool_call": {
      const result = results.get(part.call_id);
      return {
        type: "call",
        callId: part.call_id,
        tool: part.tool,
        args: typeof part.arguments === "string" ? part.arguments : JSON.stringify(part.arguments ?? {}),
        state: result
          ? (result.ledger ?? (result.is_error ? "failed" : "succeeded"))
          : delivery.outcome === "interrupted"
            ? "unknown"
            : "pending",
        ...(result ? { result: { id: result.id, text: textOf(result) } } : {}),
      };
    }
    default:
      return { type: "file", name: part.name ?? part.media_type ?? part.type };
  }
}

const textOf = (message: WireMessage) =>
  message.parts.map((part) => (part.type === "text" ? part.text : `[${part.type}]`)).join("\n");

/** A run whose outcome is unknown: its calls without a result may have had their effect. */
export const markLost = (items: Transcript, runId: string): Transcript =>
  items.map((it) => (it.runId === runId && it.parts.some(isOpenCall) ? { ...it, parts: loseCalls(it.parts) } : it));

const isOpenCall = (part: Part) => part.type === "call" && !part.result;
const loseCalls = (parts: readonly Part[]): readonly Part[] =>
  parts.map((part) => (part.type === "call" && !part.result ? { ...part, state: "unknown" } : part));

// ---- what the page sends ----

export const userItem = (id: string, text: string): Item => ({
  key: id,
  id,
  role: "user",
  parts: [{ type: "text", text }],
  runId: null,
  delivery: COMPLETE,
  sending: true,
});

/** The client's copy of the conversation. The server knows the ids, and its own texts win. */
export function toAgui(transcript: Transcript): Message[] {
  const messages: Message[] = [];
  for (const { id, role, parts } of transcript) {
    const content = plainText(parts);
    if (role !== "assistant") {
      messages.push({ id, role, content });
      continue;
    }
    const calls = parts.filter((part) => part.type === "call");
    messages.push({
      id,
      role,
      content,
      ...(calls.length > 0 && {
        toolCalls: calls.map((call) => ({
          id: call.callId,
          type: "function" as const,
          function: { name: call.tool, arguments: call.args || "{}" },
        })),
      }),
    });
    for (const { result, callId } of calls) {
      if (result) messages.push({ id: result.id, role: "tool", toolCallId: callId, content: result.text });
    }
  }
  return messages;
}

const MOST_MESSAGES = 1_000;
const MOST_CHARACTERS = 1_000_000; // at most three bytes each: the server takes 4 MiB and 2,000 messages

/** As much of the end as a request may hold, at least what is new and the message before it. The server goes by the newest
 * message that it knows; more is told only for one that has lost the conversation. */
export function newest(messages: readonly Message[]): Message[] {
  let from = messages.length;
  for (let room = MOST_CHARACTERS; from > 0; from--) {
    room -= JSON.stringify(messages[from - 1]).length;
    const held = messages.length - from;
    if (held >= 2 && (room < 0 || held >= MOST_MESSAGES)) break;
  }
  while (messages[from]?.role === "tool" && from < messages.length - 2) from++; // its call is left out
  return messages.slice(from);
}

/** The conversation up to the last question or tool result: what a retry goes on from. */
export const retryFrom = (items: Transcript): Transcript =>
  items.slice(0, items.findLastIndex((it) => it.role === "user" || it.parts.some(isSettledCall)) + 1);

const isSettledCall = (part: Part) => part.type === "call" && part.result !== undefined;

export const plainText = (parts: readonly Part[]) =>
  parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");

// ---- what a run tells ----

/** One event of run `runId`. `joined`: the stream tells the run from its start, so what is shown of it gives way. */
export function applyEvent(items: Transcript, event: AguiEvent, runId: string, joined: boolean): Transcript {
  if (event.subagentRunId) return items; // of another agent's conversation: its call tells how far that is
  switch (event.type) {
    case "RUN_STARTED":
      return items
        .filter((it) => !joined || it.runId !== runId || it.role === "user")
        .map((it) => (it.sending ? { ...it, sending: false, runId } : it));
    case "MESSAGES_SNAPSHOT":
      return applySnapshot(items, event.messages ?? []);
    case "TEXT_MESSAGE_START":
      return startText(items, event.messageId!, event.role ?? "assistant", runId);
    case "TEXT_MESSAGE_CONTENT":
      return change(items, event.messageId!, (it) => ({ ...it, parts: append(it.parts, "text", event.delta ?? "") }));
    case "REASONING_MESSAGE_START":
      return openHolder(items, event.messageId!, runId, { type: "reasoning", text: "", open: true });
    case "REASONING_MESSAGE_CONTENT":
      return change(items, event.messageId!, (it) => ({
        ...it,
        parts: append(it.parts, "reasoning", event.delta ?? ""),
      }));
    case "REASONING_MESSAGE_END":
      return change(items, event.messageId!, (it) => ({ ...it, parts: closeReasoning(it.parts) }));
    case "TOOL_CALL_START":
      return startCall(items, event, runId);
    case "TOOL_CALL_ARGS":
      return changeCall(items, event.toolCallId!, (call) => ({ ...call, args: call.args + (event.delta ?? "") }));
    case "TOOL_CALL_RESULT":
      return changeCall(items, event.toolCallId!, (call) => settleCall(call, event));
    case "CUSTOM":
      return event.name === "pilothouse.tool" ? toolProgress(items, event.value) : items;
    case "RUN_FINISHED":
      return finish(items, runId, outcomeOf(event.outcome?.type));
    case "RUN_ERROR": {
      const lost = event.code === "outcome_unknown" || event.code === "abandoned";
      return finish(items, runId, lost ? "interrupted" : "error");
    }
    default:
      return items;
  }
}

const outcomeOf = (type: string | undefined) =>
  type === "cancelled" ? "aborted" : type === "interrupt" ? "paused" : "success";

function change(items: Transcript, id: string, fn: (item: Item) => Item): Transcript {
  const at = items.findLastIndex((it) => it.id === id);
  return at < 0 ? items : items.with(at, fn(items[at]!));
}

function append(parts: readonly Part[], type: "text" | "reasoning", delta: string): readonly Part[] {
  const last = parts.at(-1);
  if (last?.type === type) return parts.with(-1, { ...last, text: last.text + delta });
  return [...parts, { type, text: delta }];
}

const closeReasoning = (parts: readonly Part[]): readonly Part[] =>
  parts.map((part) => (part.type === "reasoning" && part.open ? { type: "reasoning", text: part.text } : part));

/** A message opens, or one that a tool call had interrupted goes on. */
function startText(items: Transcript, id: string, role: string, runId: string): Transcript {
  if (role === "user") {
    // Taken in by the run: a steer, a follow-up. Its text follows.
    const item: Item = { key: id, id, role: "user", parts: [], runId, delivery: COMPLETE };
    return items.some((it) => it.id === id)
      ? change(items, id, (it) => ({ ...it, parts: [] }))
      : [...completeEarlier(items, runId), item];
  }
  return attach(items, id, runId, (it) => ({ ...it, delivery: STREAMING }));
}

function startCall(items: Transcript, event: AguiEvent, runId: string): Transcript {
  const callId = event.toolCallId!;
  const call: CallPart = { type: "call", callId, tool: event.toolCallName ?? "tool", args: "", state: "pending" };
  const add = (it: Item): Item => ({ ...it, parts: [...closeReasoning(it.parts), call] });
  if (event.parentMessageId) return attach(items, event.parentMessageId, runId, add);
  return items.at(-1)?.role === "assistant" ? items.with(-1, add(items.at(-1)!)) : openHolder(items, callId, runId, call);
}

/** Brings `id` to the end of the work: the message with that id, or a new one, with the open holder's parts in it. */
function attach(items: Transcript, id: string, runId: string, fn: (item: Item) => Item): Transcript {
  const last = items.at(-1);
  const holder = last?.holder && last.id !== id ? last : undefined;
  if (items.some((it) => it.id === id)) {
    const rest = holder ? items.slice(0, -1) : items;
    return change(rest, id, (it) => fn({ ...it, parts: [...it.parts, ...(holder?.parts ?? [])] }));
  }
  if (holder) return items.with(-1, fn({ ...holder, id, holder: false }));
  const item: Item = { key: id, id, role: "assistant", parts: [], runId, delivery: STREAMING };
  return [...completeEarlier(items, runId), fn(item)];
}

function openHolder(items: Transcript, id: string, runId: string, part: Part): Transcript {
  if (items.at(-1)?.holder && items.at(-1)!.id === id)
    return change(items, id, (it) => ({ ...it, parts: [...it.parts, part] }));
  const item: Item = { key: id, id, role: "assistant", parts: [part], runId, delivery: STREAMING, holder: true };
  return [...completeEarlier(items, runId), item];
}

/** The earlier messages of a run are complete when the next one starts, whatever the run's end is. */
function completeEarlier(items: Transcript, runId: string): Transcript {
  return items.map((it) =>
    it.runId === runId && it.delivery.phase === "streaming" ? { ...it, holder: false, delivery: COMPLETE } : it,
  );
}

function changeCall(items: Transcript, callId: string, fn: (call: CallPart) => CallPart): Transcript {
  const at = items.findLastIndex((it) => it.parts.some((part) => part.type === "call" && part.callId === callId));
  if (at < 0) return items;
  const item = items[at]!;
  const parts = item.parts.map((part) => (part.type === "call" && part.callId === callId ? fn(part) : part));
  return items.with(at, { ...item, parts });
}

/** AG-UI results carry no ledger; the text says it where it is not a success. The list read at the end has it. */
function settleCall(call: CallPart, event: AguiEvent): CallPart {
  const text = typeof event.content === "string" ? event.content : JSON.stringify(event.content ?? "");
  const said = /^\W*(refused|cancelled|outcome unknown|error|failed)\b/i.exec(text)?.[1]?.toLowerCase();
  const state: CallState =
    said === "refused" || said === "cancelled"
      ? said
      : said === "outcome unknown"
        ? "unknown"
        : said
          ? "failed"
          : "succeeded";
  return { ...call, state, note: undefined, result: { id: event.messageId ?? `${call.callId}:result`, text } };
}

function toolProgress(items: Transcript, value: unknown): Transcript {
  const { id, phase, text } = (value ?? {}) as { id?: unknown; phase?: unknown; text?: unknown };
  if (typeof id !== "string") return items;
  const told = [text, phase].filter((it) => it !== "started"); // that much "Running" says already
  const note = told.find((it) => typeof it === "string" && it !== "") as string | undefined;
  return changeCall(items, id, (call) => (call.result ? call : { ...call, state: "running", note }));
}

/** The first terminal wins; a call that got no answer is not known to have ended. */
function finish(items: Transcript, runId: string, outcome: NonNullable<Delivery["outcome"]>): Transcript {
  return items.map((it) => {
    if (it.runId !== runId || it.delivery.phase === "complete") return it;
    const parts = closeReasoning(it.parts);
    const settled = outcome === "interrupted" ? loseCalls(parts) : parts;
    return { ...it, holder: false, parts: settled, delivery: { phase: "complete", outcome } };
  });
}

/** Known messages keep what is shown, unless their final text differs from it; unknown ones come in where they stand.
 * A snapshot that leaves out the message being streamed does not make it vanish. */
function applySnapshot(items: Transcript, messages: readonly Message[]): Transcript {
  let result = items;
  let after: string | null = null;
  for (const message of messages) {
    if (message.role === "user" || message.role === "assistant") {
      const text = contentText(message.content);
      if (result.some((it) => it.id === message.id)) {
        result = change(result, message.id, (it) => correct(it, text));
      } else {
        result = insertAfter(result, after, fromAgui(message, text));
      }
      after = message.id;
    } else if (message.role === "tool") {
      const { toolCallId, id } = message;
      const content = contentText(message.content);
      result = changeCall(result, toolCallId, (call) =>
        call.result ? call : settleCall(call, { type: "TOOL_CALL_RESULT", messageId: id, content }),
      );
    }
  }
  return result;
}

/** The snapshot is right about a final text, but may lag behind one that streams: never rewind, never empty. */
function correct(item: Item, text: string): Item {
  const shown = item.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("");
  if (item.role === "user" || text === "" || text === shown) return item;
  if (item.delivery.phase === "streaming" && shown.startsWith(text)) return item;
  return { ...item, parts: [...item.parts.filter((part) => part.type !== "text"), { type: "text", text }] };
}

function fromAgui(message: Message & { role: "user" | "assistant" }, text: string): Item {
  const calls = message.role === "assistant" ? (message.toolCalls ?? []) : [];
  const parts: Part[] = text ? [{ type: "text", text }] : [];
  for (const call of calls) {
    const { name, arguments: args } = call.function;
    parts.push({ type: "call", callId: call.id, tool: name, args, state: "pending" });
  }
  return { key: message.id, id: message.id, role: message.role, parts, runId: null, delivery: COMPLETE };
}

function insertAfter(items: Transcript, id: string | null, item: Item): Transcript {
  const at = id === null ? 0 : items.findIndex((it) => it.id === id) + 1;
  return items.toSpliced(at, 0, item);
}

function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part: { type?: string; text?: string }) => (part.type === "text" ? (part.text ?? "") : "")).join("");
}
