/** What stands under the last message: how the latest run ended, and what can be done about it. */

import { html, nothing } from "lit";
import type { Run, Session } from "../session";
import { isUnsettled, unknownText, waysOut } from "../status";
import type { Transcript } from "../transcript";
import type { Question } from "./dialog";
import { requests } from "./requests";

type Ask = (question: Question) => Promise<string | null>;

export const isOpenUnknown = (run: Run | null) =>
  run?.status === "unknown" && (run.view === null || isUnsettled(run.view));

export function ending(session: Session, ask: Ask) {
  const { run, items } = session.state;
  if (!run) return nothing;
  if (isOpenUnknown(run)) return unknown(session, run, ask);
  switch (run.status) {
    case "accepted":
    case "running":
    case "stopping":
      return items.at(-1)?.role === "user" ? html`<p class="working" data-testid="working">Working</p>` : nothing;
    case "waiting":
      return requests(session);
    case "failed":
      return html`
        <div class="banner bad" data-testid="failed" role="alert">
          <p><strong>The answer failed.</strong> ${run.error}</p>
          <div class="buttons">${retry(session)}</div>
        </div>
      `;
    case "cancelled":
    case "incomplete":
    case "unknown": // settled: a person gave it up
      return html`
        <div class="ending">
          ${hasAnswer(items, run) ? nothing : html`<span>${NOTHING_CAME[run.status]}</span>`} ${retry(session)}
        </div>
      `;
    default:
      return nothing;
  }
}

const NOTHING_CAME: Partial<Record<Run["status"], string>> = {
  cancelled: "Stopped before an answer.",
  incomplete: "Ended before an answer.",
  unknown: "Abandoned: what it did is not known.",
};

const hasAnswer = (items: Transcript, run: Run) => items.some((it) => it.role === "assistant" && it.runId === run.id);

const retry = (session: Session) =>
  html`<button type="button" data-testid="retry" @click=${() => session.retry()}>Try again</button>`;

function unknown(session: Session, run: Run, ask: Ask) {
  const ways = run.view ? waysOut(run.view) : { recover: true, abandon: true };
  const abandon = async () => {
    const reason = await ask({
      title: "Abandon this run?",
      text: "Its outcome stays unknown for good, and the record says that you decided so.",
      label: "Reason",
      value: "Given up by the user",
      confirm: "Abandon",
      danger: true,
    });
    if (reason !== null) await session.abandon(reason);
  };
  return html`
    <div class="banner warn" data-testid="unknown" role="alert">
      <p><strong>How this ended is not known.</strong> ${run.view ? unknownText(run.view) : ""}</p>
      <p>
        Everything above was recorded before it broke off. A tool that was running may have had its effect. You can also
        simply write on.
      </p>
      <div class="buttons">
        ${ways.recover
          ? html`<button type="button" class="primary" data-testid="recover" @click=${() => session.recover()}>
              Recover
            </button>`
          : nothing}
        ${ways.abandon
          ? html`<button type="button" data-testid="abandon" @click=${abandon}>Abandon…</button>`
          : nothing}
      </div>
    </div>
  `;
}
