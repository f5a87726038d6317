/** The page's one store and the actions on it: what is open, what is known of it, and the stream that is read.
 *
 * What the server lists is the truth; a stream only shows it sooner. So after each end of a stream, and whenever the
 * thread changed elsewhere (another tab, a command line), the open thread is read again. */

import { randomUUID } from "@ag-ui/client";
import { api, Problem, Unreachable } from "./api";
import { joinTexts, load, save } from "./drafts";
import { isLive, isUnsettled, LIVE, outcomeText, shownStatus } from "./status";
import { readStream, Unended, type StreamEvent, type StreamRequest } from "./stream";
import * as transcript from "./transcript";
import type { Item, Transcript } from "./transcript";
import type { AgentInfo, Panel, RunRequest, RunStatus, RunView, ThreadInfo, ThreadMessages } from "./wire";

/** The latest run of the open thread. */
export interface Run {
  id: string;
  agent: string;
  status: RunStatus;
  error: string;
  view: RunView | null;
}

export interface Notice {
  id: number;
  tone: "info" | "error";
  text: string;
}

export interface State {
  agents: readonly AgentInfo[];
  agent: string; // the one that answers in the open thread
  threads: readonly ThreadInfo[];
  next: string | null;
  query: string;
  threadId: string | null;
  loading: boolean;
  items: Transcript;
  panels: readonly Panel[]; // what the AI controllers show
  run: Run | null;
  link: "none" | "open" | "reconnecting";
  offline: boolean;
  draft: string;
  notices: readonly Notice[];
  spoken: string; // for the live region
}

const DEFAULT_AGENT = "default";
const POLL_MS = 4_000;
const BACKOFF_MS = [300, 600, 1_200, 2_500, 5_000];
const STEADY_MS = 5_000; // a connection that lasted this long was a good one
const REPLAY_MS = 80; // a join tells in one burst what was shown already: drawn in one go

export class Session {
  state: State = {
    agents: [],
    agent: DEFAULT_AGENT,
    threads: [],
    next: null,
    query: "",
    threadId: null,
    loading: false,
    items: [],
    panels: [],
    run: null,
    link: "none",
    offline: false,
    draft: load("draft", null),
    notices: [],
    spoken: "",
  };

  private readonly listeners = new Set<() => void>();
  private reading: AbortController | null = null; // the stream of the open thread
  private visit = {}; // replaced when another thread is opened: late answers for the old one are dropped
  private seen = ""; // what the list said of the open thread when it was last read
  private heldUntil = 0;
  private holding = 0;
  private wake: () => void = () => {};
  private lastNotice = 0;
  private changes = 0;
  private readonly early = new Set<string>(); // AI controllers that showed something before they were listed

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  get busy(): boolean {
    const { run } = this.state;
    return run !== null && LIVE.has(run.status);
  }

  // ---- life ----

  async start(): Promise<void> {
    addEventListener("online", () => this.wake());
    addEventListener("focus", () => void this.poll());
    document.addEventListener("visibilitychange", () => document.hidden || void this.poll());
    setInterval(() => document.hidden || void this.poll(), POLL_MS);
    void this.ask(async () => {
      const { items } = await api.agents();
      const known = items.some(({ name }) => name === this.state.agent);
      this.set({ agents: items, ...(known || !items[0] || this.state.threadId ? {} : { agent: items[0].name }) });
    });
    await this.loadThreads();
  }

  /** Reads the list, and the open thread when something happened to it that no stream told us. */
  async poll(): Promise<void> {
    const back = this.state.offline;
    await this.loadThreads();
    const { threadId, run, offline } = this.state;
    if (!threadId || this.reading || offline) return;
    if (back || this.signature(threadId) !== this.seen || (run && LIVE.has(run.status))) await this.refresh();
  }

  private signature(threadId: string): string {
    const it = this.state.threads.find((thread) => thread.thread_id === threadId);
    return it ? `${it.last_run}|${it.status}|${it.updated_at}` : "";
  }

  // ---- threads ----

  async loadThreads(more = false): Promise<void> {
    const { query, next } = this.state;
    await this.ask(async () => {
      const page = await api.threads(query, more ? next : null);
      if (this.state.query !== query) return;
      this.set({
        threads: more ? [...this.state.threads, ...page.items] : page.items,
        next: page.next ?? null,
        offline: false,
      });
    }, "quiet");
  }

  search(query: string): void {
    this.set({ query });
    void this.loadThreads();
  }

  async open(threadId: string | null): Promise<void> {
    if (threadId === this.state.threadId && (threadId === null || this.state.items.length > 0)) return;
    this.leave();
    const agent = this.state.threads.find((it) => it.thread_id === threadId)?.agent ?? this.firstAgent();
    this.set({ threadId, agent, items: [], panels: [], run: null, loading: threadId !== null, draft: load("draft", threadId) });
    if (threadId) await this.refresh();
  }

  private firstAgent(): string {
    const { agents } = this.state;
    return agents.some(({ name }) => name === DEFAULT_AGENT) ? DEFAULT_AGENT : (agents[0]?.name ?? DEFAULT_AGENT);
  }

  private leave(): void {
    this.visit = {};
    this.reading?.abort();
    this.reading = null;
    this.seen = "";
    this.set({ link: "none", notices: [] });
  }

  async rename(threadId: string, title: string): Promise<void> {
    await this.ask(() => api.rename(threadId, title));
    await this.loadThreads();
  }

  async remove(threadId: string): Promise<boolean> {
    const done = await this.ask(async () => (await api.remove(threadId), true));
    await this.loadThreads();
    return done === true;
  }

  /** Reads the open thread and its latest run, and follows that if it is at work. */
  async refresh(): Promise<void> {
    const { visit } = this;
    const { threadId } = this.state;
    if (!threadId) return;
    const seen = this.signature(threadId);
    const listed = await this.ask(() => api.messages(threadId).catch(absent(EMPTY_THREAD)));
    if (visit !== this.visit) return;
    if (!listed) return this.set({ loading: false });
    const run = await this.latestRun(threadId, listed);
    if (visit !== this.visit || this.reading) return;
    let items = transcript.fromServer(listed.items, this.state.items);
    if (run?.view && isUnsettled(run.view)) items = transcript.markLost(items, run.id);
    this.seen = seen;
    this.set({ items, run, loading: false, ...(run ? { agent: run.agent } : {}) });
    this.restoreUnsent(threadId);
    void this.loadPanels(threadId);
    if (run?.view && isLive(run.view)) void this.follow({ agent: run.agent, threadId, runId: run.id });
  }

  /** What the AI controllers show changes with the end of a run; a thread without any has none. */
  private async loadPanels(threadId: string): Promise<void> {
    const { visit } = this;
    const { run } = this.state;
    const found = await this.ask(() => api.controllers(threadId).catch(absent(NO_CONTROLLERS)), "quiet");
    if (!found || visit !== this.visit) return;
    const stamp = run ? `${run.id} ${run.status}` : "";
    const panels = found.items.flatMap(({ key, exports }): Panel[] => {
      const kind = KINDS.find(([name]) => exports.includes(name))?.[1];
      const before = this.state.panels.find((it) => it.key === key);
      const staged = this.busy && (this.early.has(key) || before?.staged === true);
      return kind ? [{ key, kind, stamp: staged && before ? before.stamp : stamp, staged }] : [];
    });
    this.early.clear();
    this.set({ panels });
  }

  /** The shared state has a key for each AI controller that shows something: what a run commits is told there. */
  private stateChanged(event: StreamEvent): void {
    const keys =
      event.type === "STATE_SNAPSHOT"
        ? Object.keys((event["snapshot"] as object | null) ?? {})
        : (event["delta"] as { path: string }[]).map(({ path }) => unescaped(path.split("/")[1] ?? ""));
    for (const key of new Set(keys)) this.panelChanged(key, false);
  }

  private panelChanged(key: string, staged: boolean): void {
    const { panels, threadId } = this.state;
    if (panels.some((it) => it.key === key)) {
      const stamp = `change ${++this.changes}`;
      this.set({ panels: panels.map((it) => (it.key === key ? { ...it, stamp, staged } : it)) });
    } else if (staged && threadId) {
      this.early.add(key);
      void this.loadPanels(threadId);
    }
  }

  private async latestRun(threadId: string, listed: ThreadMessages): Promise<Run | null> {
    const info = this.state.threads.find((it) => it.thread_id === threadId);
    const id = listed.active_run?.run_id ?? info?.last_run ?? listed.items.at(-1)?.run_id ?? listed.head;
    if (!id) return null;
    const view = (await this.ask(() => api.run(id).catch(absent(null)), "quiet")) ?? null;
    if (view) {
      const error = view.status === "failed" ? outcomeText(view) : "";
      return { id, agent: view.agent ?? this.state.agent, status: shownStatus(view), error, view };
    }
    const status = listed.active_run?.status;
    return status ? { id, agent: info?.agent ?? this.state.agent, status, error: "", view } : null;
  }

  /** What left the composer before a reload, without a sign that it arrived, goes back into it. */
  private restoreUnsent(threadId: string): void {
    const unsent = load("unsent", threadId);
    if (!unsent) return;
    save("unsent", threadId, "");
    const last = this.state.items.findLast((it) => it.role === "user");
    if (!last || transcript.plainText(last.parts) !== unsent) this.setDraft(joinTexts(unsent, this.state.draft));
  }

  // ---- sending and following ----

  setDraft(draft: string): void {
    save("draft", this.state.threadId, draft);
    this.set({ draft });
  }

  chooseAgent(agent: string): void {
    this.set({ agent });
  }

  /** Sends the draft. The thread is named here, so a new one has an address before the server knows of it. */
  send(): void {
    const text = this.state.draft.trim();
    if (!text || this.busy) return;
    if (this.requests.length > 0) return this.say("info", "Answer what is asked above first. What you wrote is kept.");
    this.setDraft("");
    const threadId = this.state.threadId ?? randomUUID();
    const item = transcript.userItem(randomUUID(), text);
    const items = [...this.state.items, item];
    save("unsent", threadId, text);
    this.set({ threadId, items, notices: [] });
    void this.follow(this.newRun(transcript.toAgui(items)), item);
  }

  /** Asks again from the last question. What the old run gave leaves the path, not the record. */
  retry(): void {
    if (this.busy) return;
    const items = transcript.retryFrom(this.state.items);
    this.set({ items, notices: [] });
    void this.follow(this.newRun(transcript.toAgui(items)));
  }

  /** Answers the open requests of a waiting run, all at once. */
  answer(answers: readonly { id: string; payload: unknown }[]): void {
    const resume = answers.map(({ id, payload }) => ({ interruptId: id, status: "resolved" as const, payload }));
    this.set({ notices: [] });
    void this.follow({ ...this.newRun(transcript.toAgui(this.state.items)), resume });
  }

  private newRun(messages: NonNullable<StreamRequest["messages"]>): StreamRequest {
    const told = transcript.newest(messages);
    return { agent: this.state.agent, threadId: this.state.threadId!, runId: randomUUID(), messages: told };
  }

  /** Starts or joins a run and reads it to its end, over as many connections as that takes. */
  private async follow(asked: StreamRequest, item?: Item): Promise<void> {
    this.reading?.abort();
    const reading = (this.reading = new AbortController());
    const { agent, threadId, runId } = asked;
    let started = !asked.messages;
    const known = this.state.run?.id === runId ? this.state.run : null;
    this.set({ link: "open", run: known ?? { id: runId, agent, status: "accepted", error: "", view: null } });

    for (let attempt = 0; ; attempt++) {
      const since = Date.now();
      const joining = started;
      const request = joining ? { agent, threadId, runId } : asked;
      const end = await readStream(
        request,
        (event) => {
          if (event.type === "RUN_STARTED") {
            started = true;
            save("unsent", threadId, "");
          }
          this.take(event, runId, joining);
        },
        reading,
      );
      if (end.kind === "aborted") return;
      if (end.kind === "terminal") break;
      const { error } = end;
      if (error instanceof Problem && !started) return this.refused(error, threadId, item);
      if (error instanceof Problem && !error.passing) {
        this.say("error", error.message);
        break;
      }
      if (!isConnection(error)) {
        this.say("error", `The stream could not be read on: ${messageOf(error)}`);
        break;
      }
      if (Date.now() - since > STEADY_MS) attempt = 0;
      this.set({ link: "reconnecting" });
      await this.pause(BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length - 1)]!);
      if (reading.signal.aborted) return;
    }
    this.reading = null;
    this.set({ link: "none" });
    await this.loadThreads();
    if (!this.reading) await this.refresh();
  }

  private take(event: StreamEvent, runId: string, joining: boolean): void {
    const run = this.state.run!;
    const items = transcript.applyEvent(this.state.items, event as transcript.AguiEvent, runId, joining);
    switch (event.type) {
      case "RUN_STARTED":
        if (joining) this.heldUntil = Date.now() + REPLAY_MS;
        else void this.loadThreads();
        this.set({ items, link: "open", run: { ...run, status: run.status === "stopping" ? "stopping" : "running" } });
        return;
      case "RUN_FINISHED": {
        const type = (event["outcome"] as { type?: string } | undefined)?.type;
        const status = type === "cancelled" ? "cancelled" : type === "interrupt" ? "waiting" : "completed";
        const spoken = { cancelled: "Stopped.", waiting: "Waiting for your answer." } as Record<string, string>;
        this.set({ items, run: { ...run, status }, spoken: spoken[status] ?? answerOf(items) });
        return;
      }
      case "RUN_ERROR": {
        const unknown = event["code"] === "outcome_unknown";
        const error = unknown ? "" : String(event["message"] ?? "");
        const spoken = unknown ? "The outcome is unknown." : `Failed: ${error}`;
        this.set({ items, run: { ...run, status: unknown ? "unknown" : "failed", error }, spoken });
        return;
      }
      case "STATE_SNAPSHOT":
      case "STATE_DELTA":
        this.stateChanged(event);
        return;
      case "CUSTOM": {
        if (event["name"] === "pilothouse.staged") this.panelChanged((event["value"] as { key: string }).key, true);
        const note = NOTES[String(event["name"])];
        if (note) this.say("info", note);
        if (items !== this.state.items) this.set({ items });
        return;
      }
      default:
        if (items !== this.state.items) this.set({ items });
    }
  }

  /** The server did not take it: nothing was started, so what was written goes back where it was. */
  private async refused(problem: Problem, threadId: string, item?: Item): Promise<void> {
    this.reading = null;
    this.takeBack(threadId, item);
    this.say("error", problem.message);
    await this.refresh();
  }

  private takeBack(threadId: string, item?: Item): void {
    save("unsent", threadId, "");
    this.set({ link: "none", run: null, items: this.state.items.filter((it) => it.id !== item?.id) });
    if (item) this.setDraft(joinTexts(transcript.plainText(item.parts), this.state.draft));
  }

  async stop(): Promise<void> {
    const { run, threadId } = this.state;
    if (!run || !threadId || !this.busy) return;
    const unsent = this.state.items.find((it) => it.sending);
    if (unsent) return this.stopAsking(run, threadId, unsent);
    const { status } = run;
    this.setRun({ status: "stopping" });
    const answer = await this.ask(() => api.stop(run.agent, threadId, run.id));
    if (answer?.stopped) return;
    if (this.state.run?.id === run.id && this.state.run.status === "stopping") this.setRun({ status });
    if (answer && !this.reading) await this.refresh();
  }

  /** Ends a run that waits, instead of answering it. */
  async dropAsk(): Promise<void> {
    const { run, threadId } = this.state;
    if (!run || !threadId || run.status !== "waiting") return;
    this.set({ notices: [] });
    await this.ask(() => api.stop(run.agent, threadId, run.id));
    await this.refresh();
    await this.loadThreads();
  }

  /** Nothing says that the message was taken. The page lets go of it, tells the server in case it was, and looks. */
  private async stopAsking(run: Run, threadId: string, unsent: Item): Promise<void> {
    this.reading?.abort();
    this.reading = null;
    this.takeBack(threadId, unsent);
    this.say("info", "Stopped before the server had taken the message.");
    const answer = await api.stop(run.agent, threadId, run.id).catch(() => null);
    if (answer?.stopped && this.state.draft === transcript.plainText(unsent.parts)) this.setDraft("");
    await this.refresh();
  }

  // ---- ways out of an unknown outcome ----

  async recover(): Promise<void> {
    const { run } = this.state;
    if (!run) return;
    const view = await this.ask(() => api.recover(run.id));
    if (view && isLive(view)) this.say("info", NOTES["pilothouse.resumed"]!);
    if (view && isUnsettled(view)) this.say("info", "Recovering did not settle it: the outcome is still unknown.");
    await this.loadThreads();
    await this.refresh();
  }

  async abandon(reason: string): Promise<void> {
    const { run } = this.state;
    if (!run) return;
    await this.ask(() => api.abandon(run.id, reason));
    await this.loadThreads();
    await this.refresh();
  }

  get requests(): readonly RunRequest[] {
    const { run } = this.state;
    return run?.status === "waiting" ? (run.view?.requests ?? []).filter((it) => it.kind !== "external") : [];
  }

  // ---- notices, errors, change ----

  say(tone: Notice["tone"], text: string): void {
    const others = this.state.notices.filter((it) => it.text !== text);
    this.set({ notices: [...others.slice(-2), { id: ++this.lastNotice, tone, text }] });
  }

  dismiss(id: number): void {
    this.set({ notices: this.state.notices.filter((it) => it.id !== id) });
  }

  /** Runs one request. A failure is told, not thrown; `quiet` tells only that the server is away. */
  private async ask<T>(action: () => Promise<T>, quiet?: "quiet"): Promise<T | undefined> {
    try {
      return await action();
    } catch (error) {
      if (error instanceof Unreachable) this.set({ offline: true });
      else if (!quiet || (error instanceof Problem && error.status === 401)) this.say("error", messageOf(error));
      return undefined;
    }
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => (clearTimeout(timer), resolve());
    });
  }

  private setRun(change: Partial<Run>): void {
    if (this.state.run) this.set({ run: { ...this.state.run, ...change } });
  }

  private set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    const held = this.heldUntil - Date.now();
    if (held <= 0) this.tell();
    else this.holding ||= setTimeout(() => this.tell(), held);
  }

  private tell(): void {
    clearTimeout(this.holding);
    this.holding = 0;
    for (const listener of this.listeners) listener();
  }
}

/** Notes that say more than the messages and the status do. */
const NOTES: Record<string, string> = {
  "pilothouse.forked": "You wrote on from an earlier point: this is a new branch, the old one is kept.",
  "pilothouse.resumed": "Resumed: the work goes on where it was interrupted.",
  "pilothouse.recovered": "Resumed: the work goes on where it was interrupted.",
};

const KINDS = [
  ["rows", "grid"],
  ["spec", "chart"],
  ["form", "form"],
] as const; // which panel shows an AI controller, by an export that only its kind has
const NO_CONTROLLERS = { items: [] as { key: string; exports: string[] }[] };
const EMPTY_THREAD: ThreadMessages = { items: [], active_run: null, head: null };

/** A step of a JSON pointer (RFC 6901). */
const unescaped = (step: string) => step.replaceAll("~1", "/").replaceAll("~0", "~");

const absent =
  <T>(value: T) =>
  (error: unknown): T => {
    if (error instanceof Problem && error.status === 404) return value;
    throw error;
  };

/** A broken connection may be tried again; an answer that makes no sense would come again. */
const isConnection = (error: unknown) =>
  error instanceof Unreachable ||
  error instanceof Unended ||
  error instanceof SyntaxError || // half a frame
  (error instanceof Problem && error.passing);

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

function answerOf(items: Transcript): string {
  const text = transcript.plainText(items.at(-1)?.parts ?? []);
  return text ? `Answer: ${text.slice(0, 600)}` : "Done.";
}
