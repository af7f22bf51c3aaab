"""The style sheet of the token view: light and dark, and readable without colour."""

from specbench_kit.reports.writing.html_style import theme
from specbench_kit.reports.writing.palette import COLOURS

BLUE, ORANGE, GREEN, VERMILLION = COLOURS[:4]

LIGHT = f"--accepted: {BLUE}38; --bonus: {ORANGE}55; --reused: {GREEN}45; --rejected: {VERMILLION}33;"
DARK = f"--accepted: {BLUE}90; --bonus: {ORANGE}70; --reused: {GREEN}78; --rejected: {VERMILLION}66;"

CSS = f"""\
{theme(LIGHT, DARK)}\
html {{ scroll-padding-bottom: 50vh; }}
body {{
  margin: 0 auto; max-width: 75rem; padding: 1rem 1rem 50vh;
  background: var(--back); color: var(--text); font: 1rem/1.5 system-ui, sans-serif;
}}
a {{ color: inherit; }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
code, pre, .output {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }}
i {{ color: var(--faint); font-style: normal; }}
.hint {{ color: var(--faint); }}
.legend {{ display: flex; flex-wrap: wrap; gap: .4rem .8rem; list-style: none; margin: 1rem 0 0; padding: 0; }}
.legend li {{ padding: 0 .4rem; }}
.output {{ line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }}
.round {{ border-left: 1px solid var(--faint); margin-right: .2rem; padding-left: .15rem; cursor: help; }}
.round:hover, .round:focus-within {{ outline: 2px solid var(--text); outline-offset: 1px; }}
.token {{ unicode-bidi: isolate; }}
.accepted > .token, .token.accepted, li.accepted {{ background: var(--accepted); border-bottom: 2px solid {BLUE}; }}
.bonus > .token, .token.bonus, li.bonus {{ background: var(--bonus); border-bottom: 2px dotted {ORANGE}; }}
.reused > .token, .token.reused, li.reused {{ background: var(--reused); border-bottom: 4px double {GREEN}; }}
.rejected > .token, li.rejected {{ background: var(--rejected); border-bottom: 2px dashed {VERMILLION}; }}
.unsent > .token, .proactive > .token, li.unsent, li.proactive {{ color: var(--faint); }}
.tree {{
  display: none; position: fixed; left: 0; right: 0; bottom: 0; z-index: 1; max-height: 45vh; overflow: auto;
  padding: .6rem 1rem; border-top: 2px solid var(--text); background: var(--panel); line-height: 1.5; cursor: auto;
}}
.round:focus-within > .tree, .round:hover > .tree {{ display: block; }}
.round:hover > .tree {{ z-index: 2; }}
body:has(.every:checked) .tree {{
  display: block; position: static; margin: .3rem 0; max-height: none; overflow: visible;
}}
body:has(.every:checked) .round {{ display: block; }}
.line {{ display: block; white-space: pre; }}
"""
