/** The control API over fetch. Every address is relative to the page, so that it works mounted under a prefix. */

import type { AgentInfo, ControllerInfo, FormShown, GridPage, RunView, ThreadMessages, ThreadPage } from "./wire";

/** The server's refusal (RFC 9457). Without one, the request did not reach a server that answered: `Unreachable`. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly members: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = "Problem";
  }

  /** A server that is busy, draining or restarting: the same request may work a little later. */
  get passing(): boolean {
    return this.status === 429 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
    this.name = "Unreachable";
  }
}

/** `fetch` that answers only with a success, and raises `Problem`, `Unreachable` or the caller's own abort. */
export async function request(url: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (init?.signal?.aborted) throw error;
    throw new Unreachable();
  }
  if (response.ok) return response;
  const body = await response.text().catch(() => "");
  throw problemOf(response.status, response.statusText, body);
}

function problemOf(status: number, statusText: string, body: string): Problem {
  let members: Record<string, unknown> = {};
  try {
    members = (JSON.parse(body) as Record<string, unknown> | null) ?? {};
  } catch {
    // A proxy's own page, perhaps: the status line is all there is to say.
  }
  const text = [members["detail"], members["title"]].find((it) => typeof it === "string" && it !== "");
  return new Problem(
    status,
    typeof members["code"] === "string" ? members["code"] : `http_${status}`,
    (text as string | undefined) ?? `The server answered ${status} ${statusText}`.trim(),
    members,
  );
}

async function json<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.headers = { ...init.headers, "Content-Type": "application/json" };
    init.body = JSON.stringify(body);
  }
  const response = await request(path, init);
  return (response.status === 204 ? null : await response.json().catch(() => null)) as T;
}

const id = encodeURIComponent;
const flag = (on: boolean) => (on ? "1" : "0");

export const runUrl = (agent: string) => `./agui/${id(agent)}`;
export const joinUrl = (agent: string, run: string) => `${runUrl(agent)}?runId=${id(run)}&offset=-1`;

const exportUrl = (thread: string, key: string, name: string) =>
  `./v1/threads/${id(thread)}/controllers/${id(key)}/${id(name)}`;

export const api = {
  agents: () => json<{ items: AgentInfo[] }>("GET", "./v1/agents"),
  threads: (query: string, cursor?: string | null) => {
    const params = new URLSearchParams();
    if (query) params.set("q", query);
    if (cursor) params.set("cursor", cursor);
    const search = params.toString();
    return json<ThreadPage>("GET", `./v1/threads${search && `?${search}`}`);
  },
  rename: (thread: string, title: string) => json<unknown>("PATCH", `./v1/threads/${id(thread)}`, { title }),
  remove: (thread: string) => json<unknown>("DELETE", `./v1/threads/${id(thread)}`),
  messages: (thread: string) => json<ThreadMessages>("GET", `./v1/threads/${id(thread)}/messages`),
  run: (run: string) => json<RunView>("GET", `./v1/runs/${id(run)}`),
  recover: (run: string) => json<RunView>("POST", `./v1/runs/${id(run)}/recover`, {}),
  abandon: (run: string, reason: string) => json<RunView>("POST", `./v1/runs/${id(run)}/abandon`, { reason }),
  controllers: (thread: string) =>
    json<{ items: ControllerInfo[] }>("GET", `./v1/threads/${id(thread)}/controllers`),
  exportUrl,
  rows: (thread: string, key: string, staged: boolean, { offset, limit, order }: { offset: number; limit: number; order: string }) => {
    const params = new URLSearchParams({ offset: String(offset), limit: String(limit), staged: flag(staged) });
    if (order) params.set("order_by", order);
    return json<GridPage>("GET", `${exportUrl(thread, key, "rows")}?${params}`);
  },
  spec: (thread: string, key: string, staged: boolean) =>
    json<unknown>("GET", `${exportUrl(thread, key, "spec")}?staged=${flag(staged)}`),
  form: (thread: string, key: string, staged: boolean) =>
    json<FormShown>("GET", `${exportUrl(thread, key, "form")}?staged=${flag(staged)}`),
  stop: (agent: string, threadId: string, runId: string) =>
    json<{ stopped: boolean }>("POST", `${runUrl(agent)}/stop`, { threadId, runId }),
};
