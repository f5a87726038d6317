/** What a waiting run asks: approvals and questions, answered all at once, as AG-UI wants it. */

import { html, nothing } from "lit";
import type { Session } from "../session";
import type { RunRequest } from "../wire";

export function requests(session: Session) {
  const open = session.requests;
  if (open.length === 0) return html`<p class="ending">Waiting for something outside this page.</p>`;
  const single = open.length === 1;
  return html`
    <form class="banner ask" data-testid="requests" @submit=${(e: SubmitEvent) => answer(session, e)}>
      <p><strong>${single ? "This needs your answer." : `These ${open.length} need your answer.`}</strong></p>
      ${open.map((request) => question(request, single))}
      <div class="buttons">
        ${single && isApproval(open[0]!)
          ? html`
              <button type="submit" class="primary" name=${idOf(open[0]!)} value="yes" data-testid="approve">Approve</button>
              <button type="submit" name=${idOf(open[0]!)} value="no" data-testid="deny">Deny</button>
            `
          : html`<button type="submit" class="primary" data-testid="answer">Answer</button>`}
        <button type="button" class="quiet" data-testid="drop" @click=${() => session.dropAsk()}>Stop instead</button>
      </div>
    </form>
  `;
}

const idOf = (request: RunRequest) => request.id ?? request.request_id ?? "";
const isApproval = (request: RunRequest) => request.kind === "approval";

function question(request: RunRequest, single: boolean) {
  const id = idOf(request);
  const prompt = request.prompt || (isApproval(request) ? "May the tool run?" : "What shall it be?");
  if (!isApproval(request))
    return html`<label><span dir="auto">${prompt}</span><input name=${id} dir="auto" data-testid="answer-input" required autocomplete="off" /></label>`;
  if (single) return html`<p dir="auto">${prompt}</p>${callLine(request)}`;
  return html`
    <fieldset>
      <legend dir="auto">${prompt}</legend>
      ${callLine(request)}
      <label class="choice"><input type="radio" name=${id} value="yes" required /> Approve</label>
      <label class="choice"><input type="radio" name=${id} value="no" /> Deny</label>
    </fieldset>
  `;
}

/** What would run: of several questions nobody could tell which one is meant. */
function callLine({ data }: RunRequest) {
  if (typeof data?.tool !== "string") return nothing;
  const args = JSON.stringify(data.arguments ?? {});
  return html`<code class="call-line" dir="ltr">${data.tool} ${args.length > LONG ? `${args.slice(0, LONG)}…` : args}</code>`;
}

const LONG = 300;

function answer(session: Session, event: SubmitEvent): void {
  event.preventDefault();
  const data = new FormData(event.target as HTMLFormElement, event.submitter);
  session.answer(
    session.requests.map((request) => {
      const given = String(data.get(idOf(request)) ?? "");
      return { id: idOf(request), payload: isApproval(request) ? { approved: given === "yes" } : given };
    }),
  );
}
