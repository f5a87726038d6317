import { html, nothing, type PropertyValues } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import { repeat } from "lit/directives/repeat.js";
import { Session } from "../session";
import { STATUS_WORDS } from "../status";
import type { ThreadInfo } from "../wire";
import type { ComposerView } from "./composer";
import { panels } from "./data";
import type { DialogView, Question } from "./dialog";
import { ending, isOpenUnknown } from "./endings";
import { icons } from "./icons";
import { threadHref, titleOf } from "./threads";
import { View } from "./view";
import "./composer";
import "./dialog";
import "./message";
import "./threads";

const NEAR_END = 80; // px from the end that still count as being there

/** The page: draws the session's state once a frame, keeps address, title, scroll position and focus in order. */
@customElement("ph-app")
export class AppView extends View {
  @state() private drawer = false;
  @state() private away = false; // scrolled away from the end

  @query(".log") private readonly log!: HTMLElement;
  @query("ph-composer") private readonly composer!: ComposerView;
  @query("ph-dialog") private readonly dialog!: DialogView;

  private readonly session = new Session();
  private shown: string | null = null; // thread of the last draw

  override connectedCallback(): void {
    super.connectedCallback();
    this.session.subscribe(() => this.requestUpdate());
    addEventListener("hashchange", () => void this.route());
    addEventListener("keydown", this.key);
    void this.session.start().then(() => this.route());
  }

  protected override firstUpdated(): void {
    // The end stays in sight while it grows, and while notices or a longer draft take room from it.
    const sizes = new ResizeObserver(() => this.away || this.toEnd());
    sizes.observe(this.querySelector(".items")!);
    sizes.observe(this.log);
    this.composer.focus();
  }

  /** Many events arrive in one frame while an answer streams: they are drawn together. */
  protected override async scheduleUpdate(): Promise<void> {
    await new Promise(requestAnimationFrame);
    await super.scheduleUpdate();
  }

  // ---- address, keys, scrolling ----

  private async route(): Promise<void> {
    const thread = /^#\/t\/(.+)$/.exec(location.hash)?.[1];
    this.drawer = false;
    await this.session.open(thread ? decodeURIComponent(thread) : null);
  }

  protected override updated(_changed: PropertyValues): void {
    const { threadId, threads } = this.session.state;
    const info = threads.find((it) => it.thread_id === threadId);
    document.title = info ? `${titleOf(info)} · Pilothouse` : "Pilothouse";
    if (threadId !== this.shown) {
      this.shown = threadId;
      this.toEnd();
      // A thread that was begun here gets its address; one that was opened has it.
      if (threadId && location.hash !== threadHref(threadId)) history.replaceState(null, "", threadHref(threadId));
    }
  }

  private readonly key = (event: KeyboardEvent) => {
    const elsewhere = (event.target as Element).closest("input, select, dialog"); // there Esc means something else
    if (event.key !== "Escape" || event.isComposing || elsewhere) return;
    if (this.drawer) void this.closeDrawer();
    else if (this.session.busy) {
      event.preventDefault();
      void this.session.stop();
    }
  };

  private readonly openDrawer = async () => {
    this.drawer = true;
    await this.updateComplete;
    this.querySelector<HTMLElement>(".side a")?.focus();
  };

  private readonly closeDrawer = async () => {
    this.drawer = false;
    await this.updateComplete;
    this.querySelector<HTMLElement>(".menu")?.focus();
  };

  private readonly scrolled = () => {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    this.away = scrollHeight - scrollTop - clientHeight > NEAR_END;
  };

  private readonly toEnd = () => {
    this.away = false;
    this.log.scrollTop = this.log.scrollHeight;
  };

  private readonly ask = (question: Question) => this.dialog.ask(question);

  // ---- what the thread list asks for ----

  private newThread(): void {
    if (location.hash === "" || location.hash === "#/") void this.session.open(null);
    this.drawer = false;
    this.composer.focus();
  }

  private async renameThread(thread: ThreadInfo): Promise<void> {
    const title = await this.ask({
      title: "Rename conversation",
      label: "Title",
      value: thread.title ?? "",
      confirm: "Rename",
    });
    if (title) await this.session.rename(thread.thread_id, title);
  }

  private async removeThread(thread: ThreadInfo): Promise<void> {
    const sure = await this.ask({
      title: "Delete conversation?",
      text: `“${titleOf(thread)}” and all that was said in it will be gone.`,
      confirm: "Delete",
      danger: true,
    });
    if (sure === null || !(await this.session.remove(thread.thread_id))) return;
    if (thread.thread_id === this.session.state.threadId) location.hash = "#/";
    this.composer.focus();
  }

  // ---- drawing ----

  protected override render() {
    const { state } = this.session;
    const info = state.threads.find((it) => it.thread_id === state.threadId);
    return html`
      <button type="button" class="skip" @click=${() => this.composer.focus()}>Skip to the message box</button>
      <div class="shell ${this.drawer ? "drawer-open" : ""}">
        <nav id="side" class="side" aria-label="Conversations">
          <div class="brand">${icons.wheel} Pilothouse</div>
          <ph-threads
            .threads=${state.threads}
            .open=${state.threadId}
            .query=${state.query}
            ?more=${state.next !== null}
            @new-thread=${this.newThread}
            @search-threads=${(e: CustomEvent<string>) => this.session.search(e.detail)}
            @more-threads=${() => this.session.loadThreads(true)}
            @rename-thread=${(e: CustomEvent<ThreadInfo>) => this.renameThread(e.detail)}
            @delete-thread=${(e: CustomEvent<ThreadInfo>) => this.removeThread(e.detail)}
          ></ph-threads>
        </nav>
        <div class="shade" @click=${this.closeDrawer}></div>
        <main ?inert=${this.drawer}>
          <header class="bar">
            <button
              type="button"
              class="icon-button menu"
              aria-label="Conversations"
              aria-controls="side"
              aria-expanded=${this.drawer ? "true" : "false"}
              @click=${this.openDrawer}
            >
              ${icons.menu}
            </button>
            <h1 dir="auto">${info ? titleOf(info) : "New conversation"}</h1>
            ${this.agentName()} ${this.chip()}
          </header>
          <section class="log" tabindex="0" aria-label="Conversation" @scroll=${this.scrolled}>
            <div class="items">
              ${this.emptyText()}
              ${repeat(state.items, (it) => it.key, (it) => html`<ph-message .item=${it}></ph-message>`)}
              ${panels(state.panels, state.threadId)}
              ${state.loading ? nothing : ending(this.session, this.ask)}
            </div>
          </section>
          <div class="foot">
            ${this.away
              ? html`<button type="button" class="to-end" @click=${this.toEnd}>${icons.down} Latest</button>`
              : nothing}
            ${this.notices()}
            <ph-composer
              .session=${this.session}
              .draft=${state.draft}
              ?busy=${this.session.busy}
              ?stopping=${state.run?.status === "stopping"}
              ?asked=${this.session.requests.length > 0}
            ></ph-composer>
          </div>
        </main>
      </div>
      <div class="visually-hidden" role="status" aria-live="polite">${state.spoken}</div>
      <ph-dialog></ph-dialog>
    `;
  }

  /** Chosen before the first message; afterwards the thread has its agent. */
  private agentName() {
    const { agents, agent, items } = this.session.state;
    if (agents.length < 2) return nothing;
    if (items.length > 0) return html`<span class="agent">${agent}</span>`;
    return html`
      <label class="visually-hidden" for="agent">Agent</label>
      <select
        id="agent"
        data-testid="agent"
        .value=${agent}
        @change=${(e: Event) => this.session.chooseAgent((e.target as HTMLSelectElement).value)}
      >
        ${agents.map(({ name }) => html`<option value=${name} ?selected=${name === agent}>${name}</option>`)}
      </select>
    `;
  }

  private chip() {
    const { run, link } = this.session.state;
    const settled = run?.status === "unknown" && !isOpenUnknown(run);
    const word = !run ? "Ready" : settled ? "Abandoned" : STATUS_WORDS[run.status];
    return html`
      <span class="chip" data-testid="run-status" data-status=${run?.status ?? "idle"} data-link=${link}>
        <span class="dot" aria-hidden="true"></span>${link === "reconnecting" ? "Reconnecting" : word}
      </span>
    `;
  }

  private emptyText() {
    const { items, loading, agents, agent, threadId } = this.session.state;
    if (items.length > 0) return nothing;
    if (loading) return html`<p class="empty working">Loading</p>`;
    if (threadId) return html`<p class="empty">Nothing here yet.</p>`;
    const known = agents.find(({ name }) => name === agent);
    return html`
      <div class="welcome">
        ${icons.wheel}
        <h2>Where to?</h2>
        ${known?.description ? html`<p>${known.description}</p>` : nothing}
        ${known?.model ? html`<p class="model">${known.model}</p>` : nothing}
      </div>
    `;
  }

  private notices() {
    const { notices, link, offline } = this.session.state;
    const fixed =
      link === "reconnecting"
        ? "The connection is lost. Joining the run again…"
        : offline
          ? "The server cannot be reached. Trying again…"
          : "";
    return html`
      <div class="notices" role="status" aria-live="polite">
        ${fixed ? html`<div class="notice warn" data-testid="notice" data-kind="connection">${fixed}</div>` : nothing}
        ${repeat(
          notices,
          (it) => it.id,
          (it) => html`
            <div class="notice ${it.tone}" data-testid="notice" data-kind=${it.tone}>
              <span>${it.text}</span>
              <button type="button" class="icon-button" aria-label="Dismiss" @click=${() => this.session.dismiss(it.id)}>
                ${icons.close}
              </button>
            </div>
          `,
        )}
      </div>
    `;
  }
}
