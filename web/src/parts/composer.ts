import { html } from "lit";
import { customElement, property } from "lit/decorators.js";
import { live } from "lit/directives/live.js";
import type { Session } from "../session";
import { icons } from "./icons";
import { View } from "./view";

/** The message box. Enter sends, Shift+Enter breaks the line, Esc stops (the page listens for that everywhere). */
@customElement("ph-composer")
export class ComposerView extends View {
  @property({ attribute: false }) session!: Session;
  @property({ attribute: false }) draft = "";
  @property({ type: Boolean }) busy = false;
  @property({ type: Boolean }) stopping = false;
  @property({ type: Boolean }) asked = false; // a run waits for an answer that is given elsewhere

  /** Also before the first draw: then as soon as there is a box. */
  override focus(): void {
    const box = this.querySelector("textarea");
    if (box) box.focus();
    else void this.updateComplete.then(() => this.querySelector("textarea")?.focus());
  }

  protected override render() {
    const rows = Math.min(10, this.draft.split("\n").length);
    return html`
      <form class="composer" @submit=${this.submit}>
        <label class="visually-hidden" for="composer">Message</label>
        <textarea
          id="composer"
          dir="auto"
          data-testid="composer"
          rows=${rows}
          placeholder=${this.asked ? "Answer above to go on" : "Write a message"}
          aria-describedby="composer-keys"
          .value=${live(this.draft)}
          @input=${(e: Event) => this.session.setDraft((e.target as HTMLTextAreaElement).value)}
          @keydown=${this.key}
        ></textarea>
        ${this.busy
          ? html`<button
              type="button"
              class="round stop"
              data-testid="stop"
              aria-label="Stop"
              title="Stop (Esc)"
              ?disabled=${this.stopping}
              @click=${this.stop}
            >
              ${icons.stop}
            </button>`
          : html`<button
              type="submit"
              class="round primary"
              data-testid="send"
              aria-label="Send"
              title="Send (Enter)"
              ?disabled=${!this.draft.trim()}
            >
              ${icons.send}
            </button>`}
      </form>
      <p class="keys" id="composer-keys">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> breaks the line, <kbd>Esc</kbd> stops
      </p>
    `;
  }

  private readonly submit = (event: Event) => {
    event.preventDefault();
    this.session.send();
    this.focus();
  };

  private readonly stop = () => {
    void this.session.stop();
    this.focus();
  };

  private readonly key = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.session.send();
  };
}
