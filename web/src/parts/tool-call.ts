import { html, nothing } from "lit";
import type { CallPart, CallState } from "../transcript";
import { copyFrom } from "./view";

const WORDS: Record<CallState, string> = {
  pending: "Asked for",
  running: "Running",
  succeeded: "Done",
  failed: "Failed",
  cancelled: "Cancelled",
  refused: "Refused",
  unknown: "Outcome unknown",
};

const SHORT = 320; // longer than this is folded
const FEW_LINES = 8; // and what has more lines
const ONE_LINE = 60; // up to this stands on one line

/** One call as a card: what was asked, what came of it. */
export function toolCall(call: CallPart) {
  const args = pretty(call.args);
  const result = call.result && pretty(call.result.text);
  return html`
    <div
      class="tool"
      role="group"
      data-testid="tool-call"
      data-state=${call.state}
      data-tool=${call.tool}
      data-call-id=${call.callId}
      aria-label=${`Tool call ${call.tool}: ${WORDS[call.state]}`}
    >
      <div class="tool-head">
        <span class="dot" aria-hidden="true"></span>
        <code class="tool-name">${call.tool}</code>
        <span class="tool-state">${WORDS[call.state]}</span>
      </div>
      ${call.note ? html`<p class="tool-note">${call.note}</p>` : nothing}
      ${args === "{}" || args === "" ? nothing : fold("Arguments", args)}
      ${result === undefined ? nothing : fold("Result", result || "(empty)")}
      ${call.state === "unknown" && !call.result
        ? html`<p class="tool-note">No result was recorded. It may have had its effect; it is not run again by itself.</p>`
        : nothing}
    </div>
  `;
}

const fold = (label: string, text: string) => html`
  <details ?open=${isShort(text)}>
    <summary>${label}${isShort(text) ? nothing : html` <small>${size(text.length)}</small>`}</summary>
    <div class="code" dir="ltr">
      <button type="button" class="copy quiet" @click=${(e: Event) => copyFrom(e.currentTarget as HTMLElement, text)}>
        Copy
      </button>
      <pre tabindex="0"><code>${text}</code></pre>
    </div>
  </details>
`;

const isShort = (text: string) => text.length <= SHORT && text.split("\n").length <= FEW_LINES;

const size = (length: number) => (length < 1_000 ? `${length} characters` : `${Math.round(length / 1_000)} k characters`);

function pretty(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "string") return value;
    const line = JSON.stringify(value, null, 1).replace(/\n\s*/g, " ");
    return line.length <= ONE_LINE ? line : JSON.stringify(value, null, 2);
  } catch {
    return text; // not JSON, or not all of it yet
  }
}
