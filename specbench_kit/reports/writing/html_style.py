"""The style sheet of HTML reports: light and dark, from a phone's width up."""

from specbench_kit.reports.writing.palette import OF_METHODS, ON_DARK

LIGHT = " ".join(f"--c{index}: {colour};" for index, colour in enumerate(OF_METHODS))
DARK = " ".join(f"--c{index}: {ON_DARK[colour]};" for index, colour in enumerate(OF_METHODS))


def theme(light: str, dark: str) -> str:
    """Return the style sheet of the colours that all pages share, with a page's own in light and dark."""
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
.warning {{ background: var(--alert); border-left: 4px solid {OF_METHODS[1]}; padding: .5rem 1rem; }}
.warning ul {{ margin: 0; padding-left: 1rem; }}
.scroll {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
table {{ border-collapse: collapse; width: 100%; overflow-wrap: normal; }}
th, td {{ padding: .35rem .6rem; text-align: left; vertical-align: top; }}
tr + tr > *, thead + tbody tr:first-child > * {{ border-top: 1px solid var(--line); }}
thead th {{ background: var(--panel); vertical-align: bottom; }}
tbody th {{ font-weight: 500; }}
.numbers td, .numbers thead th + th {{ text-align: right; font-variant-numeric: tabular-nums; }}
.numbers {{ font-size: .82rem; }}
.numbers td {{ white-space: nowrap; }}
.numbers th, .numbers td {{ padding: .3rem .35rem; }}
.numbers tr > :first-child {{ position: sticky; left: 0; background: var(--back); min-width: 7rem; max-width: 12rem; }}
.numbers thead tr > :first-child {{ background: var(--panel); }}
th button {{ all: unset; cursor: pointer; font: inherit; text-decoration: underline dotted; }}
th button:focus-visible {{ outline: 2px solid currentColor; }}
th[aria-sort="descending"] button::after {{ content: " ▾"; }}
th[aria-sort="ascending"] button::after {{ content: " ▴"; }}
.filter {{ display: block; margin: .4rem 0; font-size: .88rem; }}
.filtered {{ display: none; }}
fieldset {{ display: flex; flex-wrap: wrap; border: 1px solid var(--line); border-radius: 6px; margin: 0 0 1rem; }}
fieldset label {{ margin-right: 1rem; white-space: nowrap; }}
.facts th {{ width: 9rem; color: var(--faint); }}
.facts td {{ overflow-wrap: anywhere; }}
@media (max-width: 40rem) {{ .facts th {{ width: 6.5rem; }} .words td:last-child {{ min-width: 16rem; }} }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }}
figure {{ margin: 0; padding: .5rem; border: 1px solid var(--line); border-radius: 6px; min-width: 0; }}
figure svg {{ display: block; width: 100%; height: auto; max-height: 36rem; }}
figure svg text {{ fill: var(--text); }}
figcaption {{ color: var(--faint); font-size: .88rem; }}
figure[class*="timeline"] {{ grid-column: 1 / -1; overflow-x: auto; }}
figure[class*="timeline"] svg {{ min-width: 44rem; }}
@media print {{ .figures {{ display: block; }} figure {{ break-inside: avoid; }} }}
"""
