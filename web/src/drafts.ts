/** What a person has written and the server has not taken: kept a thread, for the life of the tab.
 *
 * `draft` is what stands in the composer, `unsent` what has left it without a sign that a run was started.
 * Storage may be forbidden: then both last until a reload. */

type Kind = "draft" | "unsent";

const memory = new Map<string, string>();
const keyOf = (kind: Kind, thread: string | null) => `pilothouse.${kind}.${thread ?? ""}`;

export function load(kind: Kind, thread: string | null): string {
  const key = keyOf(kind, thread);
  try {
    return sessionStorage.getItem(key) ?? memory.get(key) ?? "";
  } catch {
    return memory.get(key) ?? "";
  }
}

export function save(kind: Kind, thread: string | null, text: string): void {
  const key = keyOf(kind, thread);
  try {
    if (text) sessionStorage.setItem(key, text);
    else sessionStorage.removeItem(key);
  } catch {
    memory.set(key, text);
  }
}

export const joinTexts = (first: string, second: string) => [first, second].filter(Boolean).join("\n\n");
