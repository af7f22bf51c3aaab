"""A page per request: where each committed token comes from, and the token tree of its round.

The pages need no network and no script; every text from a model or a prompt is escaped.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import count, repeat
from typing import TYPE_CHECKING
from unicodedata import category

from specbench_kit.decoding.detail import RequestDetail, RoundDetail
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.reports.render_html import shell
from specbench_kit.reports.sections.wording import model_sentence, time_kind
from specbench_kit.reports.writing.formatting import share, significant
from specbench_kit.reports.writing.html_style import theme
from specbench_kit.reports.writing.palette import COLOURS
from specbench_kit.runs.document import RunDocument

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenText = Callable[[int], str]

INDEX = "index.html"
COLUMNS = ("request", "category", "tokens", "rounds", "tokens / round", "accepted", "output")
MOST_SHOWN = {"unsent": 12, "proactive": 12, "rejected": 96}
"""Nodes of these kinds that a tree shows; the page only counts the others."""
START_CHARACTERS = 90


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """A token's origin: the mark that shows it without colour, and its meaning."""

    mark: str
    meaning: str


ORIGINS = {
    "accepted": TokenOrigin("✓", "accepted draft"),
    "reused": TokenOrigin("↻", "accepted, drafted ahead in the previous round"),
    "bonus": TokenOrigin("+", "bonus token of the target"),
    "forced": TokenOrigin("=", "the only token that the grammar allows, not verified"),
    "rejected": TokenOrigin("✗", "rejected draft"),
    "unsent": TokenOrigin("○", "drafted and not sent"),
    "proactive": TokenOrigin("»", "drafted ahead, while the target verified"),
}
WHITE_SPACE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True, slots=True)
class TokenPage:
    """The file name and the content of one request's page."""

    name: str
    record: RequestRecord
    detail: RequestDetail


def pages(records: Sequence[RequestRecord], details: Sequence[RequestDetail]) -> list[TokenPage]:
    """Return a page for every request with details of all its rounds, in the order of the
    records.
    """
    details_by_id = {detail.request_id: detail for detail in details}
    shown: dict[str, TokenPage] = {}
    for record in records:
        detail = details_by_id.get(record.request_id)
        if detail and record.rounds and len(detail.rounds) == len(record.rounds):
            name = _free_name(record.request_id, shown)
            shown[name] = TokenPage(name, record, detail)
    return list(shown.values())


def _free_name(request_id: str, taken: Container[str]) -> str:
    """Return a file name that is allowed on every system and that no other page has."""
    slug = re.sub(r"[^a-z0-9._-]+", "-", request_id.lower()).strip("-.")[:80] or "request"
    name = f"{slug}.html"
    numbers = count(2)
    while name in taken or name == INDEX:
        name = f"{slug}-{next(numbers)}.html"
    return name


def render_index(run: RunDocument, shown: Sequence[TokenPage], finished: int) -> str:
    """Return the page that links to all others; `finished` requests could have one."""
    rows = "".join(_index_row(page) for page in shown)
    header = "".join(f"<th>{name}</th>" for name in COLUMNS)
    summary = f"{len(shown)} of {finished} finished requests have a page."
    if not shown:
        summary += " The rounds of this method have no token trees that a page could show."
    title = f"<h1>Tokens of {_code(str(run.method))}</h1>"
    body = f"{title}<p>{_setting(run)} {summary}</p><table><tr>{header}</tr>{rows}</table>"
    return shell(f"Tokens of {run.method!s}", body, CSS)


def _index_row(page: TokenPage) -> str:
    record = page.record
    sent = sum(step.submitted for step in record.rounds)
    accepted = sum(step.accepted for step in record.rounds)
    cells = [
        f'<a href="{page.name}">{escape(record.request_id)}</a>',
        escape(record.category),
        *_numbers(record),
        share(accepted / sent) if sent else "",
        escape(" ".join(record.text.split())[:START_CHARACTERS]),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _numbers(record: RequestRecord) -> list[str]:
    tokens = len(record.output_ids)
    rounds = len(record.rounds)
    return [str(tokens), str(rounds), significant(tokens / rounds)]


def render_page(run: RunDocument, page: TokenPage, show: TokenText, prompt: str) -> str:
    """Return the page of one request; `show` returns the text of a token id."""
    record = page.record
    tokens, rounds, per_round = _numbers(record)
    result = f"{tokens} tokens in {rounds} rounds, {per_round} per round, ended by {record.finish_reason}."
    position = record.forced_first
    output = _tokens(record.output_ids[:position], repeat("forced"), show)
    steps = zip(page.detail.rounds, record.rounds, strict=True)
    for number, (detail, step) in enumerate(steps, 1):
        end = position + step.committed + step.forced
        output += _round(number, detail, step, record.output_ids[end - step.forced : end], show)
        position = end
    legend = "".join(
        f'<li class="{name}"><b>{origin.mark}</b> {escape(origin.meaning)}</li>'
        for name, origin in ORIGINS.items()
    )
    hint = "Point at a token, tap it, or move to it with Tab to see its round's tree below. A bar begins every round."
    body = (
        f'<nav><a href="{INDEX}">all requests</a></nav><h1>Request {_code(record.request_id)}</h1>'
        f"<p>{_code(str(run.method))}. {_setting(run)} {result}</p>"
        f'<ul class="legend">{legend}</ul><p class="hint">{hint}</p>'
        '<label class="hint"><input type="checkbox" class="every"/> Show the trees of all rounds</label>'
        f"<details><summary>Prompt</summary><pre>{escape(prompt)}</pre></details>"
        f'<main class="output">{output}</main>'
    )
    return shell(f"Request {record.request_id}", body, CSS)


def _setting(run: RunDocument) -> str:
    models = [escape(model_sentence(model)) for model in run.models.values() if model]
    dataset = escape(run.dataset.name or "unnamed dataset")
    return f"{dataset}; {'; '.join(models)}; {escape(time_kind(run))}."


def _tokens(tokens: Iterable[int], origins: Iterable[str], show: TokenText) -> str:
    return "".join(
        f'<wbr><span class="token {origin}">{visible(show(token), breaks=True)}</span>'
        for origin, token in zip(origins, tokens, strict=False)
    )


def _round(
    number: int, detail: RoundDetail, step: RoundRecord, forced: Sequence[int], show: TokenText
) -> str:
    """Return the committed tokens and the `forced` ones behind them, and the tree that shows while
    one of them is pointed at or has the focus.
    """
    origins = [*(_origin(detail, node) for node in detail.path), "bonus"]
    tokens = [*(detail.tokens[node] for node in detail.path), detail.bonus][: detail.committed]
    text = _tokens(tokens, origins, show) + _tokens(forced, repeat("forced"), show)
    parts = [f"{step.drafted} drafted"]
    if detail.inherited:
        parts.append(f"{detail.inherited} kept from the previous round")
    parts += [f"{step.submitted} sent", f"{step.accepted} accepted", f"{step.committed} committed"]
    if step.forced:
        parts.append(f"{step.forced} forced by the grammar behind them")
    if step.committed < step.accepted + 1:
        parts.append("the end of the output cut off the rest")
    if step.aligned:
        parts.append("aligned: the next round continues below the guessed bonus token")
    heading = f'<b id="round-{number}">Round {number}: {", ".join(parts)}</b>'
    tree = f'<span class="tree">{heading}{_tree(detail, show)}</span>'
    return f'<span class="round" tabindex="0" role="group" aria-describedby="round-{number}">{text}{tree}</span>'


def _origin(detail: RoundDetail, node: int) -> str:
    if node in detail.path:
        return "reused" if node <= detail.inherited else "accepted"
    if node in detail.submitted:
        return "rejected"
    return "proactive" if node >= len(detail.tokens) - detail.proactive else "unsent"


def _tree(detail: RoundDetail, show: TokenText) -> str:
    """Return the tree as indented text, a node per line; the bonus token stands below the last
    accepted node.
    """
    origins = {node: _origin(detail, node) for node in range(1, len(detail.tokens))}
    hidden: set[int] = set()
    for kind, most in MOST_SHOWN.items():
        hidden |= set([node for node, origin in origins.items() if origin == kind][most:])
    lines = [_line("root", 0, "•", show(detail.tokens[0]), "")]
    for node, depth in _walk(detail, hidden):
        if node is None:
            lines.append(_line("bonus", depth, ORIGINS["bonus"].mark, show(detail.bonus), ""))
        else:
            mark = ORIGINS[origins[node]].mark
            probability = f"{100 * detail.probabilities[node]:.0f}%"
            lines.append(_line(origins[node], depth, mark, show(detail.tokens[node]), probability))
    if hidden:
        lines.append(f'<span class="line">and {len(hidden)} more that were not committed</span>')
    return "".join(lines)


def _walk(detail: RoundDetail, hidden: set[int]) -> Iterator[tuple[int | None, int]]:
    """Yield the nodes below the root in depth-first order with their depths; None is the bonus
    token.
    """
    children: dict[int, list[int | None]] = {node: [] for node in range(len(detail.tokens))}
    children[detail.path[-1] if detail.path else 0].append(None)
    for child, parent in enumerate(detail.parents):
        if child and child not in hidden:
            children[parent].append(child)
    stack = [(node, 1) for node in reversed(children[0])]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        if node is not None:
            stack += [(child, depth + 1) for child in reversed(children[node])]


def _line(kind: str, depth: int, mark: str, text: str, note: str) -> str:
    indent = "  " * depth
    return f'<span class="line {kind}">{indent}<b>{mark}</b> <span class="token">{visible(text)}</span> {note}</span>'


def visible(text: str, *, breaks: bool = False) -> str:
    """Return escaped text in which white space and control characters show; `breaks` keeps line
    breaks as well.
    """
    return "".join(_visible_character(character, breaks) for character in text) or "<i>∅</i>"


def _visible_character(character: str, breaks: bool) -> str:
    if character in WHITE_SPACE:
        return f"<i>{WHITE_SPACE[character]}</i>" + ("\n" if breaks and character == "\n" else "")
    if category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"<i>\\u{ord(character):04x}</i>"
    return escape(character)


def token_text(tokenizer: "PreTrainedTokenizerBase") -> TokenText:
    """Return a function of token ids: the decoded text, or the vocabulary's piece if that is no
    whole character.
    """

    @cache
    def show(token: int) -> str:
        text = str(tokenizer.decode([token]))
        piece = str(tokenizer.convert_ids_to_tokens(token))
        if "\ufffd" in text:
            return piece
        # Tokenizers that mark the beginning of a word drop the space before a text's first word.
        return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text

    return show


def _code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


BLUE, ORANGE, GREEN, VERMILLION = COLOURS[:4]

LIGHT = (
    f"--accepted: {BLUE}38; --bonus: {ORANGE}55; --reused: {GREEN}45; --rejected: {VERMILLION}33;"
)
DARK = (
    f"--accepted: {BLUE}90; --bonus: {ORANGE}70; --reused: {GREEN}78; --rejected: {VERMILLION}66;"
)

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
.forced > .token, .token.forced, li.forced {{ border-bottom: 2px solid var(--faint); }}
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
