/** Draws a chart with the page's own Vega. A chunk of its own: it is fetched when the first chart is shown.
 *
 * Expressions are interpreted, not compiled: the page's policy makes no code from strings. Nothing is loaded: whatever a
 * spec names, the loader refuses. */

import { loader, parse, View, Warn, type Spec } from "vega";
import { expressionInterpreter } from "vega-interpreter";
import { compile, type TopLevelSpec } from "vega-lite";

const refuse = () => Promise.reject(new Error("A chart of this page loads nothing."));
const closed = Object.assign(loader(), { load: refuse, sanitize: refuse, http: refuse, file: refuse });

/** Draws into an element; what comes back takes the chart away. */
export async function draw(into: HTMLElement, spec: unknown, dark: boolean): Promise<() => void> {
  const config = dark ? DARK : LIGHT;
  const given = spec as Record<string, unknown>;
  const single = "mark" in given || "layer" in given; // the others are made of views with sizes of their own
  const fitting = { width: Math.min(into.clientWidth || 480, 640), height: 260, autosize: { type: "fit", contains: "padding" } };
  const sized = single && !("width" in given) ? { ...fitting, ...given } : given;
  const merged = { ...sized, config: { ...config, ...(given["config"] as object | undefined) } };
  const { spec: made } = compile(merged as TopLevelSpec);
  const runtime = parse(made as Spec, undefined, { ast: true });
  const view = new View(runtime, {
    renderer: "canvas", // the other renderer writes inline styles
    container: into,
    loader: closed,
    expr: expressionInterpreter,
    logLevel: Warn,
    hover: true,
  });
  await view.runAsync();
  return () => view.finalize();
}

const colours = (text: string, line: string) => ({
  background: "transparent",
  axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line },
  legend: { labelColor: text, titleColor: text },
  title: { color: text },
  view: { stroke: line },
});
const LIGHT = colours("#1b2529", "#d9dfe1");
const DARK = { ...colours("#e4eaec", "#2f3b41"), mark: { color: "#7cc0de" } };
