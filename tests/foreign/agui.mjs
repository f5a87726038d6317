// @ag-ui/client, in the version that the first argument names.
import { drive } from "./driver.mjs";

const { HttpAgent } = await import(process.argv[2]);

// What `connectAgent` asks is left to a subclass by the client.
class Agent extends HttpAgent {
  connect(input) {
    const other = new HttpAgent({ url: `${this.url}/connect`, headers: this.headers });
    return other.run(input);
  }
}

let agent;
let seen;
let ends;

const begin = () => {
  seen = { running: true, events: [], finished: [], errors: [], failed: [], tools: {}, rejected: null };
};

const subscriber = {
  onEvent: ({ event }) => void seen.events.push(event.type),
  onRunFinishedEvent: ({ event, outcome }) =>
    void seen.finished.push({ runId: event.runId, outcome: outcome ?? null, wire: event.outcome ?? null, usage: event.usage }),
  onRunErrorEvent: ({ event }) => void seen.errors.push({ message: event.message, code: event.code }),
  onRunFailed: ({ error }) => void seen.failed.push(error.message),
  onCustomEvent: ({ event }) => void (seen.custom ??= []).push([event.name, event.value]),
};

drive({
  open({ url, thread, headers = {}, messages = [] }) {
    agent = new Agent({ url, threadId: thread, headers, initialMessages: messages });
    agent.subscribe(subscriber);
    begin();
    seen.running = false;
  },
  say({ text, message }) {
    agent.addMessage({ id: message, role: "user", content: text });
  },
  add({ message }) {
    agent.addMessage(message);
  },
  keep({ count }) {
    agent.setMessages(agent.messages.slice(0, count));
  },
  run({ run, connect = false, ...more }) {
    begin();
    const going = connect ? agent.connectAgent({ runId: run, ...more }) : agent.runAgent({ runId: run, ...more });
    ends = going.then(
      () => void (seen.running = false),
      (error) => {
        seen.rejected = String(error?.message ?? error);
        seen.running = false;
      },
    );
    return null;
  },
  abort() {
    agent.abortRun();
  },
  async ended() {
    await ends;
  },
  show() {
    return { ...seen, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts ?? [] };
  },
});
