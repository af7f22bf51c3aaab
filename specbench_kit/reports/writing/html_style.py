"""Style sheet and script of HTML reports: light and dark, tables that sort and filter, methods that
can be hidden.
"""

from base64 import b64encode
from hashlib import sha256

from specbench_kit.reports.writing.palette import OF_METHODS, ON_DARK

LIGHT = " ".join(f"--c{index}: {colour};" for index, colour in enumerate(OF_METHODS))
DARK = " ".join(f"--c{index}: {ON_DARK[colour]};" for index, colour in enumerate(OF_METHODS))


def theme(light: str, dark: str) -> str:
    """Return the style sheet of the colours that all pages share, with a page's own in light and
    dark.
    """
    return f"""\
:root {{
  color-scheme: light dark;
  --back: #ffffff; --text: #1b1b1b; --faint: #5f6368; --line: #d0d3d6; --panel: #f5f6f7;
  {light}
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --back: #14171a; --text: #eceef0; --faint: #a5abb1; --line: #42484e; --panel: #1f2428;
    {dark}
  }}
}}
* {{ box-sizing: border-box; }}
"""


CSS = f"""\
{theme(f"--alert: #fff4d6; {LIGHT}", f"--alert: #3a2f10; {DARK}")}\
body {{
  margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere;
}}
a {{ color: inherit; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }}
h2 {{ font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }}
code, pre {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em; }}
pre {{ background: var(--panel); padding: .6rem; white-space: pre-wrap; }}
details {{ margin: .6rem 0; }}
summary {{ cursor: pointer; font-weight: 600; padding: .3rem 0; }}
.warning {{
  background: var(--alert); border-left: 4px solid {OF_METHODS[1]}; margin: .6rem 0; padding: .2rem .8rem;
  font-size: .92rem;
}}
.warning.severe {{ border-color: #c62828; }}
.warning ul {{ margin: 0; padding-left: 1rem; }}
.warning details {{ margin: 0; }}
.warning summary {{ padding: .1rem 0; }}
.warning p.line {{ font-weight: 600; margin: 0 0 .2rem; padding-left: .9rem; }}
.warning .line > summary {{ overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.warning .line[open] > summary {{ white-space: normal; }}
.warning .line:not([open]) > summary wbr {{ display: none; }}
.scroll {{ margin: .6rem 0; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
table {{ border-collapse: collapse; width: 100%; overflow-wrap: normal; }}
th, td {{ padding: .35rem .6rem; text-align: left; vertical-align: top; }}
tr + tr > *, thead + tbody tr:first-child > * {{ border-top: 1px solid var(--line); }}
thead th {{ background: var(--panel); vertical-align: bottom; }}
tbody th {{ font-weight: 500; }}
.numbers td, .numbers thead th + th {{ text-align: right; font-variant-numeric: tabular-nums; }}
.numbers {{ font-size: .82rem; }}
.numbers td, td.number, th.whole, .numbers td.text code {{ white-space: nowrap; }}
.numbers td.text, .numbers thead th.text {{ text-align: left; white-space: normal; }}
.numbers th, .numbers td {{ padding: .3rem .35rem; }}
.numbers tr > :first-child {{ position: sticky; left: 0; background: var(--back); min-width: 7rem; max-width: 12rem; }}
.numbers thead tr > :first-child {{ background: var(--panel); }}
th button {{ all: unset; cursor: pointer; font: inherit; text-decoration: underline dotted; }}
th button:focus-visible {{ outline: 2px solid currentColor; }}
th[aria-sort="descending"] button::after {{ content: " ▾"; }}
th[aria-sort="ascending"] button::after {{ content: " ▴"; }}
.filter {{ display: block; margin: .4rem 0; font-size: .88rem; }}
.filtered {{ display: none; }}
.shown label {{ display: inline-block; margin-right: 1rem; }}
.facts th {{ width: 9rem; color: var(--faint); }}
.facts td {{ overflow-wrap: anywhere; }}
@media (max-width: 40rem) {{
  h1 {{ font-size: 1.25rem; }} h2 {{ font-size: 1.1rem; margin-top: 1rem; }}
  .facts th {{ width: 6.5rem; }} .words:not(.stacked) td:last-child {{ min-width: 16rem; }}
  .words:not(.stacked) td:nth-child(2):not(:last-child) {{ min-width: 9rem; }}
  .words:not(.stacked) td:nth-child(2):last-child {{ min-width: 12rem; }}
  .numbers td.text {{ min-width: 8rem; }}
  .numbers tr > :first-child code {{ white-space: normal; overflow-wrap: anywhere; }}
  .numbers:not(.stacked) {{ font-size: .8rem; }} .numbers:not(.stacked) tr > :first-child {{ max-width: 8.5rem; }}
  .stacked thead {{ display: none; }} .stacked, .stacked tbody, .stacked tbody tr {{ display: block; }}
  .stacked tbody tr + tr {{ border-top: 2px solid var(--line); }}
  .stacked tbody tr > th:first-child {{ display: block; max-width: none; width: auto; font-weight: 600; }}
  .stacked tbody tr > td, .stacked tbody tr > td.text {{
    display: block; overflow: hidden; border-top: 0; text-align: right; white-space: normal; padding: .1rem .35rem;
  }}
  .stacked tbody tr > td:empty {{ display: none; }}
  .stacked td::before {{ content: attr(data-title); color: var(--faint); float: left; margin-right: 1rem; }}
  .stacked th[data-title]::before {{ content: attr(data-title) " "; color: var(--faint); font-weight: 400; }}
}}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }}
figure {{ margin: 0; padding: .5rem; border: 1px solid var(--line); border-radius: 6px; min-width: 0; }}
figure svg {{ display: block; width: 100%; height: auto; max-height: 36rem; }}
.figures > figure:only-child {{ max-width: 40rem; }}
figure svg text {{ fill: var(--text); }}
figcaption {{ color: var(--faint); font-size: .88rem; }}
figure[class*="timeline"] {{ grid-column: 1 / -1; overflow-x: auto; }}
figure[class*="timeline"] svg {{ min-width: 44rem; }}
@media (max-width: 40rem) {{
  .figures {{ margin: 0 -1rem; }}
  figure {{ border-width: 1px 0; border-radius: 0; padding: .25rem; }}
  figcaption {{ line-height: 1.3; padding: 0 .75rem; }}
}}
@media print {{
  .warning .line > summary {{ white-space: normal; }}
  .figures {{ display: block; }}
  figure {{ break-inside: avoid; }}
}}
"""


SCRIPT = """\
"use strict";
const slug = text => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
const number = text => {
  const match = text.replace(/,/g, "").match(/-?[0-9.]+(?:e-?[0-9]+)?/);
  const unit = {"µs": 1e-6, "ms": 1e-3, "ns": 1e-9}[(text.match(/[0-9] (ns|µs|ms)\\b/) || [])[1]] || 1;
  return match ? parseFloat(match[0]) * unit : NaN;
};
const make = (name, parent, content) => {
  const element = document.createElement(name);
  element.textContent = content;
  parent.append(element);
  return element;
};
const sortable = table => {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    if (!head.textContent) return;
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "descending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up < 0 ? "descending" : "ascending");
      const key = row => row.cells[index] ? row.cells[index].textContent.trim() : "";
      const order = (a, b) => {
        const x = number(key(a)), y = number(key(b));
        if (index && isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y);
        return up * (index && !isNaN(x) ? x - y : key(a).localeCompare(key(b)));
      };
      body.append(...[...body.rows].sort(order));
    });
  });
};
const filterable = table => {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "search";
  label.className = "filter";
  label.append("Show rows with ", box);
  table.parentElement.before(label);
  box.addEventListener("input", () => {
    for (const row of table.tBodies[0].rows)
      row.classList.toggle("filtered", !row.textContent.toLowerCase().includes(box.value.toLowerCase()));
  });
};
const hideable = () => {
  const names = new Map();
  for (const head of document.querySelectorAll("table.numbers tbody th code")) {
    const name = head.textContent, marks = `g[id*="-m-${slug(name)}--"]`;
    if (![...names.values()].includes(marks) && document.querySelector(marks)) names.set(name, marks);
  }
  const first = document.querySelector(".figures");
  if (names.size < 2 || !first) return;
  const set = document.createElement("details");
  set.className = "shown";
  make("summary", set, "Methods in figures");
  for (const [name, marks] of names) {
    const label = make("label", set, ""), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    label.append(box, ` ${name} `);
    box.addEventListener("change", () => {
      for (const mark of document.querySelectorAll(marks)) mark.style.display = box.checked ? "" : "none";
    });
  }
  first.after(set);
};
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.numbers, table.words")) {
    if (table.tBodies[0].rows.length < 2) continue;
    sortable(table);
    if (table.tBodies[0].rows.length > 7) filterable(table);
  }
  hideable();
});
"""
HASH = f"sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}"
"""The hash by which a page's policy allows this script."""
