import { html, nothing } from "lit";
import { customElement, property } from "lit/decorators.js";
import { live } from "lit/directives/live.js";
import { repeat } from "lit/directives/repeat.js";
import { STATUS_WORDS } from "../status";
import type { ThreadInfo } from "../wire";
import { icons } from "./icons";
import { View } from "./view";

export const threadHref = (thread: string) => `#/t/${encodeURIComponent(thread)}`;
export const titleOf = (thread: ThreadInfo) => thread.title?.trim() || "Untitled conversation";

/** The list of conversations. What is chosen there it tells by events; opening one is an ordinary link. */
@customElement("ph-threads")
export class ThreadsView extends View {
  @property({ attribute: false }) threads: readonly ThreadInfo[] = [];
  @property({ attribute: false }) open: string | null = null;
  @property({ attribute: false }) query = "";
  @property({ type: Boolean }) more = false;

  protected override render() {
    return html`
      <div class="threads-head">
        <a class="button primary" href="#/" data-testid="new-thread" @click=${() => this.tell("new-thread")}>
          ${icons.plus} New conversation
        </a>
        <label class="visually-hidden" for="thread-search">Search conversations</label>
        <input
          id="thread-search"
          type="search"
          dir="auto"
          data-testid="thread-search"
          placeholder="Search"
          autocomplete="off"
          .value=${live(this.query)}
          @input=${(e: Event) => this.tell("search-threads", (e.target as HTMLInputElement).value)}
        />
      </div>
      ${this.threads.length === 0
        ? html`<p class="empty">${this.query ? "Nothing found." : "No conversations yet."}</p>`
        : html`<ul class="threads">
            ${repeat(this.threads, (it) => it.thread_id, (it) => this.thread(it))}
          </ul>`}
      ${this.more
        ? html`<button type="button" class="quiet" @click=${() => this.tell("more-threads")}>Show more</button>`
        : nothing}
    `;
  }

  private thread(thread: ThreadInfo) {
    const title = titleOf(thread);
    const { status } = thread;
    const open = thread.thread_id === this.open;
    return html`
      <li data-testid="thread" data-thread-id=${thread.thread_id} data-status=${status ?? ""} class=${open ? "open" : ""}>
        <a href=${threadHref(thread.thread_id)} aria-current=${open ? "page" : nothing} title=${title}>
          <span class="title" dir="auto">${title}</span>
          <span class="when">
            ${status && status !== "completed" ? html`<span class="state">${STATUS_WORDS[status] ?? status}</span>` : nothing}
            ${when(thread.updated_at)}
          </span>
        </a>
        <div class="tools">
          <button
            type="button"
            class="icon-button"
            data-testid="rename"
            aria-label=${`Rename ${title}`}
            @click=${() => this.tell("rename-thread", thread)}
          >
            ${icons.pencil}
          </button>
          <button
            type="button"
            class="icon-button"
            data-testid="delete"
            aria-label=${`Delete ${title}`}
            @click=${() => this.tell("delete-thread", thread)}
          >
            ${icons.trash}
          </button>
        </div>
      </li>
    `;
  }

  private tell(type: string, detail?: unknown): void {
    this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true }));
  }
}

function when(at: string | undefined): string {
  const date = new Date(at ?? "");
  if (Number.isNaN(date.getTime())) return "";
  const today = date.toDateString() === new Date().toDateString();
  return today
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { day: "numeric", month: "short" });
}
