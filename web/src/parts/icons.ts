import { svg, html, type SVGTemplateResult } from "lit";

const icon = (body: SVGTemplateResult) =>
  html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">${body}</svg>`;

export const icons = {
  menu: icon(svg`<path d="M3 5.5h14M3 10h14M3 14.5h14" />`),
  plus: icon(svg`<path d="M10 4v12M4 10h12" />`),
  pencil: icon(svg`<path d="M4 16l.8-3.4L13.4 4l2.6 2.6-8.6 8.6L4 16z" />`),
  trash: icon(svg`<path d="M4 6h12M8 6V4h4v2M5.5 6l.7 10h7.6l.7-10M8.5 9v4.5M11.5 9v4.5" />`),
  send: icon(svg`<path d="M10 16V4.5M5 9.5l5-5 5 5" />`),
  stop: icon(svg`<rect x="5.5" y="5.5" width="9" height="9" rx="1.5" fill="currentColor" />`),
  close: icon(svg`<path d="M5 5l10 10M15 5L5 15" />`),
  down: icon(svg`<path d="M10 4v11.5M5 10.5l5 5 5-5" />`),
  wheel: html`<svg class="icon wheel" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <circle cx="16" cy="16" r="8.5" /><circle cx="16" cy="16" r="2.4" />
    <path d="M16 2.5v27M2.5 16h27M6.5 6.5l19 19M25.5 6.5l-19 19" />
  </svg>`,
};
