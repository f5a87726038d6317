// The AI SDK's chat over its own transport. Every part of each stream is read by the package's own schema, which is strict.
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";
import { drive } from "./driver.mjs";

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => void (this.messages = this.messages.with(index, structuredClone(message)));
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor(init) {
    super({ ...init, state: new State() });
  }
}

let chat;
let notes = [];
let finished = [];
let going;

drive({
  open({ url, thread, tools = false, automatic = false, messages = [] }) {
    notes = [];
    chat = new Chat({
      id: thread,
      transport: new DefaultChatTransport({ api: url }),
      onData: (part) => void notes.push(part.type),
      onFinish: ({ isAbort, isError, finishReason }) => void finished.push({ isAbort, isError, finishReason }),
      onToolCall: ({ toolCall }) => {
        if (tools && toolCall.toolName === "show_map")
          void chat.addToolOutput({ tool: "show_map", toolCallId: toolCall.toolCallId, output: { shown: toolCall.input.place } });
      },
      sendAutomaticallyWhen: automatic
        ? (given) =>
            lastAssistantMessageIsCompleteWithToolCalls(given) || lastAssistantMessageIsCompleteWithApprovalResponses(given)
        : undefined,
    });
    chat.messages = messages;
  },
  send({ text, messageId, body }) {
    finished = [];
    going = chat.sendMessage({ text, messageId }, { body });
    return null;
  },
  regenerate({ messageId }) {
    finished = [];
    going = chat.regenerate({ messageId });
    return null;
  },
  resume() {
    going = chat.resumeStream();
    return null;
  },
  approve({ request, approved, reason }) {
    return chat.addToolApprovalResponse({ id: request, approved, reason });
  },
  async ended() {
    await going;
  },
  stop() {
    return chat.stop();
  },
  show() {
    return { status: chat.status, error: chat.error?.message ?? null, messages: chat.messages, notes, finished };
  },
});
