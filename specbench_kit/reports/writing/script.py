"""The script of HTML pages: tables that can be sorted and filtered, methods that can be hidden.

A page allows this script, by its hash, and no other; without scripts it lacks nothing but these controls.
"""

from base64 import b64encode
from hashlib import sha256

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
  const set = document.createElement("fieldset");
  make("legend", set, "Methods in figures");
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
