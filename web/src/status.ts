/** The words for what a run is and how it ended. */

import type { Delivery, RunStatus, RunView } from "./wire";

export const LIVE: ReadonlySet<RunStatus> = new Set(["accepted", "running", "stopping"]);

export const STATUS_WORDS: Record<RunStatus, string> = {
  accepted: "Starting",
  running: "Working",
  waiting: "Waiting for you",
  stopping: "Stopping",
  unknown: "Outcome unknown",
  completed: "Done",
  truncated: "Cut short",
  incomplete: "Incomplete",
  cancelled: "Stopped",
  failed: "Failed",
};

/** Unknown and not yet settled by a person: the page offers ways out. An orphan is unknown without a record of it. */
export function isUnsettled(view: RunView): boolean {
  if (view.status === "unknown") return view.outcome?.["settled"] !== true;
  return (view.ownership === "orphaned" || view.ownership === "stalled") && LIVE.has(view.status);
}

/** The status to show for a view: an orphaned run is not working. */
export const shownStatus = (view: RunView): RunStatus => (isUnsettled(view) ? "unknown" : view.status);

/** Somebody works on it and its stream can be followed. */
export const isLive = (view: RunView) => LIVE.has(view.status) && !isUnsettled(view) && view.live !== false;

const CAUSES: Record<string, string> = {
  owner_lost: "The process that worked on this answer is gone, perhaps killed in the middle of it.",
  journal_unavailable: "The record of this run cannot be written at the moment.",
  stream_lost: "The connection to the model broke before it said that it had finished.",
};

/** What is known of a run whose outcome is not. */
export function unknownText(view: RunView): string {
  const { cause, reason } = view.unknown ?? {};
  const known = CAUSES[cause ?? ""] ?? (cause ? `Cause: ${cause.replaceAll("_", " ")}.` : "");
  const more = reason && reason !== cause && cause !== "owner_lost"; // of a lost owner nobody can say more
  return [known, more ? sentence(reason) : ""].filter(Boolean).join(" ");
}

const sentence = (text: string) => text.replaceAll("_", " ").replace(/[^.!?]$/, "$&.");

/** The ways out that the server says may help. It has the last word: where it names none, both are offered. */
export function waysOut(view: RunView): { recover: boolean; abandon: boolean } {
  const named = [...(view.unknown?.ways ?? []), ...(view.can ?? [])];
  const any = named.includes("recover") || named.includes("abandon");
  return { recover: !any || named.includes("recover"), abandon: !any || named.includes("abandon") };
}

/** Why a run failed or fell short, from its outcome; fields differ by the kind of ending. */
export function outcomeText(view: RunView): string {
  const outcome = view.outcome ?? {};
  for (const field of ["message", "reason", "code", "limit"]) {
    const value = outcome[field];
    if (typeof value === "string" && value !== "") return field === "message" ? value : value.replaceAll("_", " ");
  }
  return "";
}

const REASONS: Record<string, string> = {
  truncated: "Cut off at the model's length limit",
  limit: "Ended early: a limit was reached",
  deadline: "Ended early: the time was up",
  superseded: "Interrupted by a newer message",
  abandoned: "Interrupted, then abandoned: it may have done more than is shown",
};

/** The mark under a message that is not simply complete; empty for those that are. */
export function deliveryText({ phase, outcome, reason }: Delivery): string {
  if (phase === "streaming") return "";
  const why = reason ? (REASONS[reason] ?? "") : "";
  switch (outcome) {
    case "aborted":
      return why || "Stopped here";
    case "interrupted":
      return why || "Interrupted here: what came after is not known";
    case "error":
      return why || "Failed here";
    case "paused":
      return "Paused: waiting for an answer";
    default:
      return why || (reason ? `Ended early: ${reason.replaceAll("_", " ")}` : "");
  }
}
