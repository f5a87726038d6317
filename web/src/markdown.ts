/** Markdown to safe HTML, block by block. marked reads it, DOMPurify decides what may stand in the page. */

import DOMPurify from "dompurify";
import { marked, Marked, type Token, type Tokens } from "marked";

const escape = (text: string) =>
  text.replace(/[&<>"']/g, (it) => `&#${it.charCodeAt(0)};`);

const reader = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // Markup written into an answer is shown, not obeyed.
    html: ({ text }: Tokens.HTML | Tokens.Tag) => escape(text),
    code: ({ text, lang }: Tokens.Code) => {
      const language = escape(/^\S*/.exec(lang ?? "")?.[0] ?? "");
      return (
        `<div class="code" dir="ltr"><div class="code-head"><span>${language || "text"}</span>` +
        `<button type="button" class="copy quiet">Copy</button></div>` +
        `<pre tabindex="0"><code>${escape(text)}</code></pre></div>`
      );
    },
    checkbox: ({ checked }: Tokens.Checkbox) =>
      `<input type="checkbox" disabled ${checked ? "checked" : ""} aria-label="${checked ? "Done" : "To do"}"> `,
    // Loading it would tell another host what is being read.
    image: ({ href, text }: Tokens.Image) => `<a href="${escape(href)}">${escape(text || "image")}</a>`,
    table(token: Tokens.Table) {
      return `<div class="table" tabindex="0">${new marked.Renderer().table.call(this, token)}</div>`;
    },
  },
});

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const clean = (html: string) =>
  purify.sanitize(html, {
    USE_PROFILES: { html: true },
    ADD_ATTR: ["target"],
    FORBID_TAGS: ["style", "form", "img", "video", "audio", "picture", "source", "svg", "math"],
    FORBID_ATTR: ["style", "id", "name"],
  });

/** Reads one growing text. Blocks that did not change are neither rendered nor sanitised again, so what stands above
 * the line being written stays as it is in the page: cheap, and a selection in it survives. */
export class MarkdownReader {
  private known = new Map<string, string>();

  blocks(text: string): string[] {
    const tokens = reader.lexer(text);
    const { links } = tokens;
    const known = new Map<string, string>();
    const blocks = tokens
      .filter((token) => token.type !== "space" && token.type !== "def")
      .map((token) => {
        const html = this.known.get(token.raw) ?? render(token, links);
        known.set(token.raw, html);
        return html;
      });
    this.known = known;
    return blocks;
  }
}

function render(token: Token, links: ReturnType<typeof reader.lexer>["links"]): string {
  const tokens = Object.assign([token], { links });
  return clean(reader.parser(tokens));
}
