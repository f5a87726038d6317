import { html, nothing, type PropertyValues } from "lit";
import { customElement, property, state } from "lit/decorators.js";
import { api, Problem } from "../api";
import type { FormShown, GridPage, Panel } from "../wire";
import { View } from "./view";

const PAGE = 20;

/** What the AI controllers of a conversation show: grids, charts, forms. Each reads itself again when `stamp` changes. */
export function panels(list: readonly Panel[], thread: string | null) {
  if (!thread || list.length === 0) return nothing;
  return html`
    <section class="panels" aria-label="Data">
      ${list.map(({ key, kind, stamp, staged }) => {
        switch (kind) {
          case "grid":
            return html`<ph-grid .thread=${thread} .source=${key} .stamp=${stamp} ?staged=${staged}></ph-grid>`;
          case "chart":
            return html`<ph-chart .thread=${thread} .source=${key} .stamp=${stamp} ?staged=${staged}></ph-chart>`;
          case "form":
            return html`<ph-form .thread=${thread} .source=${key} .stamp=${stamp} ?staged=${staged}></ph-form>`;
        }
      })}
    </section>
  `;
}

/** One panel: what it shows is asked for when it appears, and when something may have changed. */
abstract class PanelView<T> extends View {
  @property({ attribute: false }) thread = "";
  @property({ attribute: false }) source = "";
  @property({ attribute: false }) stamp = "";
  /** Of the answer under way: shown, and kept when that is complete. */
  @property({ type: Boolean, reflect: true }) staged = false;
  @state() protected shown: T | null = null;
  @state() protected error = "";
  @state() protected loading = false;
  private asked = 0;
  private ahead = false; // what is shown is of an answer under way

  protected abstract ask(): Promise<T>;

  protected override willUpdate(changed: PropertyValues): void {
    if (changed.has("stamp") || changed.has("thread") || changed.has("source")) {
      if (changed.has("thread") || changed.has("source")) this.shown = null;
      void this.load();
    }
  }

  /** The last question counts. Nothing chosen yet is no error: the panel stays away. */
  protected async load(): Promise<void> {
    const asked = ++this.asked;
    const { staged } = this;
    this.loading = true;
    try {
      const shown = await this.ask();
      if (asked === this.asked) [this.shown, this.error, this.ahead] = [shown, "", staged];
    } catch (error) {
      if (asked !== this.asked) return;
      const refused = error instanceof Problem && error.status === 422;
      if (refused && this.ahead && !staged) this.shown = null; // the answer was not completed, and there was nothing before
      const empty = refused && (staged || !this.shown);
      this.error = empty ? "" : error instanceof Error ? error.message : String(error);
    }
    if (asked === this.asked) this.loading = false;
  }

  protected mark() {
    return this.staged ? html`<span class="soft" data-testid="staged">Kept when the answer is complete.</span>` : nothing;
  }

  protected failure() {
    return this.error ? html`<p class="panel-error" role="alert">${this.error}</p>` : nothing;
  }
}

@customElement("ph-grid")
export class GridView extends PanelView<GridPage> {
  @state() private order = ""; // a column's name, with `-` before it for descending
  @state() private offset = 0;

  /** The reader's own order and place hold for as long as it is the same query. */
  protected async ask(): Promise<GridPage> {
    const { offset, order } = this;
    const page = await this.rows(offset, order).catch((error: unknown) => {
      if (!order && !offset) throw error;
      return this.rows(0, ""); // another query may have no such column
    });
    if (page.query === this.shown?.query || (!order && !offset)) return page;
    [this.order, this.offset] = ["", 0];
    return this.rows(0, "");
  }

  private rows(offset: number, order: string): Promise<GridPage> {
    return api.rows(this.thread, this.source, this.staged, { offset, limit: PAGE, order });
  }

  private sort(name: string): void {
    this.order = this.order === name ? `-${name}` : name;
    this.offset = 0;
    void this.load();
  }

  private turn(by: number): void {
    this.offset = Math.max(0, this.offset + by);
    void this.load();
  }

  protected override render() {
    const page = this.shown;
    if (!page) return this.failure();
    const last = page.offset + page.rows.length;
    const total = page.total === null ? "" : ` of ${page.total}`;
    const csv = api.exportUrl(this.thread, this.source, "csv");
    return html`
      <figure class="panel" data-testid="grid" data-source=${this.source} aria-busy=${this.loading}>
        <figcaption>
          <b>${page.title ?? "Rows"}</b>
          <span class="soft">${page.rows.length ? `${page.offset + 1}–${last}${total}` : "no rows"}</span>
          ${this.mark()}
          ${this.staged
            ? nothing
            : html`<a class="button quiet" data-testid="csv" href=${csv} download>CSV</a>`}
        </figcaption>
        ${this.failure()}
        <div class="table" tabindex="0">
          <table>
            <thead>
              <tr>
                ${page.columns.map(
                  ({ name, title, align, group }) => html`
                    <th scope="col" class=${align} aria-sort=${this.sorted(name)}>
                      <button type="button" class="quiet" @click=${() => this.sort(name)}>
                        ${group ? `${group}: ` : ""}${title}<span aria-hidden="true">${ARROWS[this.sorted(name)]}</span>
                      </button>
                    </th>
                  `,
                )}
              </tr>
            </thead>
            <tbody>
              ${page.rows.map(
                (row) => html`
                  <tr>
                    ${row.map((cell, at) => html`<td dir="auto" class=${page.columns[at]!.align}>${cellText(cell)}</td>`)}
                  </tr>
                `,
              )}
            </tbody>
          </table>
        </div>
        ${this.offset > 0 || page.more
          ? html`<div class="pager">
              <button type="button" ?disabled=${this.offset === 0} @click=${() => this.turn(-PAGE)}>Back</button>
              <button type="button" data-testid="next-page" ?disabled=${!page.more} @click=${() => this.turn(PAGE)}>
                Next
              </button>
            </div>`
          : nothing}
        ${page.complete || page.total === null ? nothing : html`<p class="soft">Only the first rows can be reached.</p>`}
      </figure>
    `;
  }

  private sorted(name: string): "ascending" | "descending" | "none" {
    return this.order === name ? "ascending" : this.order === `-${name}` ? "descending" : "none";
  }
}

const ARROWS = { ascending: " ▲", descending: " ▼", none: "" };

function cellText(cell: unknown): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell !== "object") return String(cell);
  const { type, size } = cell as { type?: string; size?: number };
  return type === "bytes" ? `${size} bytes` : JSON.stringify(cell);
}

@customElement("ph-chart")
export class ChartView extends PanelView<unknown> {
  private drawn: unknown = null;
  private look = ""; // theme and width that it was drawn for
  private turn = 0;
  private erase: () => void = () => {};
  private readonly theme = matchMedia("(prefers-color-scheme: dark)");
  private readonly again = () => this.requestUpdate();

  override connectedCallback(): void {
    super.connectedCallback();
    this.theme.addEventListener("change", this.again);
    addEventListener("resize", this.again);
  }

  protected ask(): Promise<unknown> {
    return api.spec(this.thread, this.source, this.staged);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.theme.removeEventListener("change", this.again);
    removeEventListener("resize", this.again);
    this.erase();
    this.drawn = null;
  }

  protected override updated(): void {
    const into = this.querySelector<HTMLElement>(".canvas");
    if (!into) {
      this.erase();
      [this.erase, this.drawn] = [() => {}, null];
      return;
    }
    const look = `${this.theme.matches} ${into.clientWidth}`;
    if (this.shown === this.drawn && look === this.look) return;
    this.drawn = this.shown;
    this.look = look;
    void this.draw(into, this.shown);
  }

  private async draw(into: HTMLElement, spec: unknown): Promise<void> {
    const turn = ++this.turn;
    try {
      const { draw } = await import("../vega");
      if (turn !== this.turn) return; // another one, or in another look
      this.erase();
      into.replaceChildren();
      const erase = await draw(into, spec, this.theme.matches);
      if (turn !== this.turn) return erase();
      this.erase = erase;
      into.dataset["drawn"] = this.theme.matches ? "dark" : "light";
    } catch (error) {
      this.error = `The chart cannot be drawn: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  protected override render() {
    if (!this.shown) return this.failure();
    const png = api.exportUrl(this.thread, this.source, "png");
    return html`
      <figure class="panel" data-testid="chart" data-source=${this.source}>
        <figcaption>
          <b>Chart</b>
          ${this.mark()}
          ${this.staged ? nothing : html`<a class="button quiet" href=${`${png}?scale=2`} download>PNG</a>`}
        </figcaption>
        ${this.failure()}
        <div class="canvas" role="img" aria-label=${titleOf(this.shown)}></div>
      </figure>
    `;
  }
}

function titleOf(spec: unknown): string {
  const title = (spec as { title?: unknown }).title;
  const text = typeof title === "object" && title !== null ? (title as { text?: unknown }).text : title;
  return typeof text === "string" ? text : "Chart";
}

@customElement("ph-form")
export class FormView extends PanelView<FormShown> {
  protected ask(): Promise<FormShown> {
    return api.form(this.thread, this.source, this.staged);
  }

  protected override render() {
    const form = this.shown;
    if (!form) return this.failure();
    return html`
      <figure class="panel" data-testid="form" data-source=${this.source} data-complete=${form.complete}>
        <figcaption>
          <b>Form</b>
          <span class="soft">${form.complete ? "complete" : `${form.missing.length} missing`}</span>
          ${this.mark()}
        </figcaption>
        ${this.failure()}
        <dl>
          ${form.fields.map(
            ({ path, title, error }) => html`
              <div class=${form.missing.includes(path) ? "missing" : ""}>
                <dt>${title}</dt>
                <dd dir="auto">
                  ${path in form.values ? cellText(form.values[path]) : html`<span class="soft">–</span>`}
                  ${form.changed.includes(path) ? html`<small class="soft">by the assistant</small>` : nothing}
                  ${error ? html`<small class="bad">${error}</small>` : nothing}
                </dd>
              </div>
            `,
          )}
        </dl>
        ${form.form.map((rule) => html`<p class="panel-error">${rule}</p>`)}
      </figure>
    `;
  }
}
