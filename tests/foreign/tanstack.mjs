// @tanstack/ai-client over its own connection for server-sent events.
import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import { drive } from "./driver.mjs";

let client;
let error = null;
let chunks = [];
let going;
let interrupts = [];

const tool = {
  __toolSide: "client",
  name: "show_map",
  description: "Shows a place.",
  inputSchema: { type: "object", properties: { place: { type: "string" } } },
  execute: async ({ place }) => `shown ${place}`,
};

drive({
  open({ url, thread, persistence = false, tools = false }) {
    client = new ChatClient({
      connection: fetchServerSentEvents(url, { reconnect: { delayMs: 20, maxAttempts: 200 } }),
      threadId: thread,
      persistence,
      tools: tools ? [tool] : [],
      onError: (found) => void (error = found.message),
      onChunk: (chunk) => void chunks.push(chunk.type),
      onInterruptStateChange: (state) => void (interrupts = state.interrupts ?? []),
    });
    client.attach?.();
  },
  send({ text }) {
    error = null;
    chunks = [];
    going = client.sendMessage(text).catch((found) => void (error = found.message));
    return null;
  },
  reload() {
    error = null;
    chunks = [];
    going = client.reload();
    return null;
  },
  async answer({ approved }) {
    for (const one of client.getPendingInterrupts()) one.resolveInterrupt({ approved });
  },
  async ended() {
    await going;
  },
  stop() {
    client.stop();
  },
  show() {
    return {
      status: client.getStatus(),
      loading: client.getIsLoading(),
      error,
      chunks,
      interrupts: client.getPendingInterrupts().map(({ id, kind, reason }) => ({ id, kind, reason })),
      messages: client.getMessages().map(({ id, role, parts }) => ({ id, role, parts })),
    };
  },
});
