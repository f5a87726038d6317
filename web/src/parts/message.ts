import { html, nothing } from "lit";
import { customElement, property } from "lit/decorators.js";
import { unsafeHTML } from "lit/directives/unsafe-html.js";
import { MarkdownReader } from "../markdown";
import { deliveryText } from "../status";
import { plainText, type Item, type Part } from "../transcript";
import { toolCall } from "./tool-call";
import { copyFrom, View } from "./view";

const SPEAKER = { user: "You", assistant: "Answer", system: "System" };

/** One message. Drawn again only when its item changed. */
@customElement("ph-message")
export class MessageView extends View {
  @property({ attribute: false }) item!: Item;

  private readonly readers: MarkdownReader[] = [];

  protected override render() {
    const { role, parts, delivery, sending, id } = this.item;
    const mark = role === "assistant" ? deliveryText(delivery) : "";
    return html`
      <article
        class="message ${role}"
        data-testid="message"
        data-role=${role}
        data-phase=${delivery.phase}
        data-outcome=${delivery.outcome ?? ""}
        data-message-id=${id}
        aria-label=${SPEAKER[role]}
        aria-busy=${delivery.phase === "streaming" ? "true" : "false"}
      >
        ${parts.map((part, at) => this.drawPart(part, at))}
        ${mark ? html`<p class="mark" data-testid="mark" data-outcome=${delivery.outcome ?? ""}>${mark}</p>` : nothing}
        ${sending ? html`<p class="mark" data-testid="sending">Sending…</p>` : nothing}
        ${this.actions()}
      </article>
    `;
  }

  private drawPart(part: Part, at: number) {
    switch (part.type) {
      case "text":
        return this.item.role === "assistant" ? this.markdown(part.text, at) : html`<p class="plain" dir="auto">${part.text}</p>`;
      case "reasoning":
        return html`
          <details class="reasoning" data-testid="reasoning">
            <summary>${part.open ? html`<span class="working">Thinking</span>` : "Reasoning"}</summary>
            <div class="plain" dir="auto">${part.text}</div>
          </details>
        `;
      case "call":
        return toolCall(part);
      case "file":
        return html`<p class="file" dir="auto">${part.name}</p>`;
    }
  }

  private markdown(text: string, at: number) {
    const reader = (this.readers[at] ??= new MarkdownReader());
    return html`
      <div class="prose" @click=${this.copyCode}>
        ${reader.blocks(text).map((block) => html`<div class="block" dir="auto">${unsafeHTML(block)}</div>`)}
      </div>
    `;
  }

  private actions() {
    const { role, parts, delivery } = this.item;
    const text = plainText(parts);
    const goesOn = parts.some((part) => part.type === "call"); // what it says is not the answer yet
    if (role !== "assistant" || delivery.phase === "streaming" || !text || goesOn) return nothing;
    return html`
      <div class="actions">
        <button type="button" class="quiet" @click=${(e: Event) => copyFrom(e.currentTarget as HTMLElement, text)}>
          Copy answer
        </button>
      </div>
    `;
  }

  private readonly copyCode = (event: Event) => {
    const button = (event.target as Element).closest<HTMLElement>(".copy");
    const code = button?.closest(".code")?.querySelector("code");
    if (button && code) void copyFrom(button, code.textContent ?? "");
  };
}
