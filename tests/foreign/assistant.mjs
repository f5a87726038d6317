// @assistant-ui/react-ag-ui: the runtime under its React hook, with the HTTP agent that it brings.
import { createRequire } from "node:module";
import { AgUiThreadRuntimeCore } from "./node_modules/@assistant-ui/react-ag-ui/dist/runtime/AgUiThreadRuntimeCore.js";
import { drive } from "./driver.mjs";

const { HttpAgent } = createRequire(
  new URL("./node_modules/@assistant-ui/react-ag-ui/package.json", import.meta.url),
)("@ag-ui/client");

const logger = { debug() {}, error: console.error };
let core;
let going;
let errors = [];

drive({
  open({ url, thread }) {
    const agent = new HttpAgent({ url, threadId: thread });
    core = new AgUiThreadRuntimeCore({
      agent,
      logger,
      showThinking: true,
      onError: (error) => void errors.push(error.message),
      notifyUpdate() {},
    });
  },
  tools() {
    const show_map = { description: "Shows a place.", parameters: { type: "object", properties: {} } };
    core.attachRuntime({ thread: { getModelContext: () => ({ tools: { show_map } }) } });
  },
  send({ text }) {
    errors = [];
    const message = { parentId: core.session.headId, sourceId: null, role: "user", content: [{ type: "text", text }] };
    going = core.append({ ...message, attachments: [], metadata: { custom: {} }, runConfig: {} }).catch(() => {});
    return null;
  },
  answer({ responses }) {
    going = core.submitInterruptResponses(responses).catch((error) => void errors.push(error.message));
    return null;
  },
  result({ call, value }) {
    const messageId = core.findMessageIdForToolCall(call);
    core.addToolResult({ messageId, toolCallId: call, toolName: "show_map", result: value, isError: false });
  },
  async stop() {
    await core.cancel();
  },
  async ended() {
    await going;
  },
  show() {
    return {
      running: core.isRunning(),
      errors,
      interrupts: core.getPendingInterrupts()?.interrupts ?? [],
      calls: core.getPendingToolCalls()?.toolCallIds ?? [],
      messages: core.getMessages().map(({ id, role, status, content }) => ({ id, role, status, content })),
    };
  },
});
