/** What the server's control API says, as far as the page reads it. Answers may grow members. */

export interface AgentInfo {
  name: string;
  description?: string | null;
  model?: string | null;
}

export type RunStatus =
  | "accepted"
  | "running"
  | "waiting"
  | "stopping"
  | "unknown"
  | "completed"
  | "truncated"
  | "incomplete"
  | "cancelled"
  | "failed";

export interface ThreadInfo {
  thread_id: string;
  title?: string | null;
  agent?: string | null;
  created_at?: string;
  updated_at?: string;
  last_run?: string | null;
  status?: RunStatus | null;
  pinned?: boolean;
  archived?: boolean;
  head?: string | null;
}

export interface ThreadPage {
  items: ThreadInfo[];
  next?: string | null;
}

export interface Delivery {
  phase: "streaming" | "complete";
  outcome: "success" | "paused" | "aborted" | "error" | "interrupted" | null;
  reason?: string | null;
}

export type Ledger = "succeeded" | "failed" | "cancelled" | "refused" | "unknown";

export type WirePart =
  | { type: "text"; text: string }
  | { type: "reasoning"; text: string }
  | { type: "tool_call"; call_id: string; tool: string; arguments: unknown }
  | { type: "image" | "file"; name?: string | null; media_type?: string | null };

export interface WireMessage {
  id: string;
  role: "user" | "assistant" | "tool" | "system";
  parts: WirePart[];
  call_id?: string | null;
  is_error?: boolean;
  ledger?: Ledger | null;
  run_id: string | null;
  created_at?: string | null;
  delivery: Delivery;
}

export interface ThreadMessages {
  items: WireMessage[];
  active_run: { run_id: string; status: RunStatus } | null;
  head: string | null;
}

export interface RunRequest {
  id?: string;
  request_id?: string;
  kind?: string; // input, approval, external
  prompt?: string | null;
  call_id?: string | null;
  data?: { tool?: unknown; arguments?: unknown } | null; // of an approval
}

export interface RunView {
  run_id: string;
  thread_id: string;
  agent: string;
  status: RunStatus;
  ownership: "here" | "elsewhere" | "queued" | "orphaned" | "parked" | "stalled" | "none";
  outcome?: Record<string, unknown> | null;
  unknown?: { cause?: string; reason?: string | null; ways?: string[] } | null;
  requests?: RunRequest[];
  can?: string[];
  live?: boolean;
}

/** What the AI controllers of a thread have to show. */
export interface ControllerInfo {
  key: string;
  exports: string[];
}

export interface GridColumn {
  name: string;
  title: string;
  type: string;
  align: "left" | "right";
  group: string | null;
}

export interface GridPage {
  title?: string | null;
  query: string;
  staged: boolean;
  offset: number;
  columns: GridColumn[];
  rows: unknown[][];
  more: boolean;
  total: number | null;
  complete: boolean;
}

export interface FormShown {
  fields: { path: string; title: string; required: boolean; read_only: boolean; error: string | null }[];
  values: Record<string, unknown>;
  missing: string[];
  complete: boolean;
  form: string[];
  changed: string[];
}

/** One AI controller in the page; `stamp` changes when what it shows may have changed.
 *
 * `staged`: the answer under way has changed it. That is shown already, and kept when the answer is complete. */
export interface Panel {
  key: string;
  kind: "grid" | "chart" | "form";
  stamp: string;
  staged: boolean;
}
