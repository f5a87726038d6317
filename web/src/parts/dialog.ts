import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { live } from "lit/directives/live.js";
import { View } from "./view";

export interface Question {
  title: string;
  text?: string;
  /** With a label the dialog asks for a line of text. */
  label?: string;
  value?: string;
  confirm: string;
  danger?: boolean;
}

/** Asks one thing, modally. The browser keeps the focus inside, closes on Esc and gives the focus back. */
@customElement("ph-dialog")
export class DialogView extends View {
  @state() private question: Question | null = null;

  private settle: (answer: string | null) => void = () => {};

  /** The text given ("" where none was asked for), or null if the person thought better of it. */
  async ask(question: Question): Promise<string | null> {
    this.question = question;
    await this.updateComplete;
    const dialog = this.querySelector("dialog")!;
    dialog.showModal();
    dialog.querySelector<HTMLInputElement>("input")?.select();
    return new Promise((resolve) => (this.settle = resolve));
  }

  protected override render() {
    const { question } = this;
    if (!question) return nothing;
    const { title, text, label, value, confirm, danger } = question;
    return html`
      <dialog data-testid="dialog" aria-labelledby="dialog-title" @close=${() => this.close(null)}>
        <form @submit=${this.submit}>
          <h2 id="dialog-title">${title}</h2>
          ${text ? html`<p dir="auto">${text}</p>` : nothing}
          ${label
            ? html`<label>${label}<input name="answer" dir="auto" data-testid="dialog-input" .value=${live(value ?? "")} required maxlength="500" autocomplete="off" /></label>`
            : nothing}
          <div class="buttons">
            <button type="button" data-testid="dialog-cancel" @click=${() => this.close(null)}>Cancel</button>
            <button type="submit" class=${danger ? "danger" : "primary"} data-testid="dialog-confirm">${confirm}</button>
          </div>
        </form>
      </dialog>
    `;
  }

  private readonly submit = (event: Event) => {
    event.preventDefault();
    const input = this.querySelector<HTMLInputElement>("input");
    if (input && !input.value.trim()) return;
    this.close(input?.value.trim() ?? "");
  };

  private close(answer: string | null): void {
    const { settle } = this;
    this.settle = () => {};
    this.querySelector("dialog")?.close();
    settle(answer);
  }
}
