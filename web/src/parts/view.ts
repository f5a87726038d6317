import { LitElement } from "lit";

/** A component in the light DOM: one style sheet, labels that reach across, nothing inline. */
export class View extends LitElement {
  protected override createRenderRoot() {
    return this;
  }
}

/** Copies, also where the clipboard API is missing (a page that is not from localhost and not https). */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Copies and says so on the button for a moment. */
export async function copyFrom(button: HTMLElement, text: string): Promise<void> {
  const label = button.dataset["label"] ?? button.textContent ?? "Copy";
  button.dataset["label"] = label;
  button.textContent = (await copyText(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = label), 1_500);
}
