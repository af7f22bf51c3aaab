"""A page per request: where each committed token came from, and the tree of its round.

The pages need no network and no script; every text from a model or a prompt is escaped.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from unicodedata import category

from specbench_kit.decoding.detail import RequestDetail, RoundDetail
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.reports.render_html import shell
from specbench_kit.reports.timeline.token_style import CSS
from specbench_kit.reports.writing.formatting import share, significant
from specbench_kit.reports.writing.wording import model_sentence, time_kind

Fields = Mapping[str, Any]
Show = Callable[[int], str]

INDEX = "index.html"
COLUMNS = ("request", "category", "tokens", "rounds", "tokens / round", "accepted", "output")
SHOWN = {"unsent": 12, "proactive": 12, "rejected": 96}
"""Nodes of these kinds; the rest of a large tree is only counted."""
START_CHARACTERS = 90


@dataclass(frozen=True, slots=True)
class Origin:
    """What became of a token: the mark that stands for it where colour does not, and its meaning."""

    mark: str
    meaning: str


ORIGINS = {
    "accepted": Origin("✓", "accepted draft"),
    "reused": Origin("↻", "accepted, drafted ahead in the round before"),
    "extra": Origin("+", "extra token, the target's own"),
    "rejected": Origin("✗", "rejected draft"),
    "unsent": Origin("○", "drafted and not sent"),
    "proactive": Origin("»", "drafted ahead, while the target verified"),
}
COMMITTED = ("accepted", "reused", "extra")
REPLACED = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True, slots=True)
class Page:
    """One request's page and its name."""

    name: str
    record: RequestRecord
    detail: RequestDetail


def pages(records: Sequence[RequestRecord], details: Sequence[RequestDetail]) -> list[Page]:
    """A page for every request whose rounds are known, in the order of the records."""
    known = {detail.request_id: detail for detail in details}
    shown = [record for record in records if record.request_id in known and record.rounds]
    shown = [record for record in shown if len(known[record.request_id].rounds) == len(record.rounds)]
    names: dict[str, None] = {}
    for record in shown:
        names[_free_name(record.request_id, names)] = None
    return [Page(name, record, known[record.request_id]) for name, record in zip(names, shown, strict=True)]


def _free_name(request_id: str, taken: Mapping[str, None]) -> str:
    """A file name that no system refuses or takes for another's."""
    slug = re.sub(r"[^a-z0-9._-]+", "-", request_id.lower()).strip("-.")[:80] or "request"
    candidates = (f"{slug}{suffix}.html" for suffix in ("", *(f"-{number}" for number in range(2, len(taken) + 3))))
    return next(name for name in candidates if name not in taken and name != INDEX)


def render_index(run: Fields, shown: Sequence[Page], finished: int) -> str:
    """Links to every page; `finished` requests could have one."""
    rows = "".join(_index_row(page) for page in shown)
    header = "".join(f"<th>{name}</th>" for name in COLUMNS)
    first = f"{len(shown)} of {finished} finished requests have a page."
    if not shown:
        first += " This method's rounds leave no trees that a page could show."
    body = (
        f"<h1>Tokens of {_code(run['method'])}</h1><p>{_setting(run)} {first}</p><table><tr>{header}</tr>{rows}</table>"
    )
    return shell(f"Tokens of {run['method']}", body, CSS)


def _index_row(page: Page) -> str:
    record, sent = page.record, sum(one.submitted for one in page.record.rounds)
    accepted = sum(one.accepted for one in record.rounds)
    cells = [
        f'<a href="{page.name}">{escape(record.request_id)}</a>',
        escape(record.category),
        *_numbers(record),
        share(accepted / sent) if sent else "",
        escape(" ".join(record.text.split())[:START_CHARACTERS]),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _numbers(record: RequestRecord) -> list[str]:
    tokens, rounds = len(record.output_ids), len(record.rounds)
    return [str(tokens), str(rounds), significant(tokens / rounds)]


def render_page(run: Fields, page: Page, show: Show, prompt: str) -> str:
    """One request; `show` gives the text of a token id."""
    record = page.record
    tokens, rounds, per_round = _numbers(record)
    result = f"{tokens} tokens in {rounds} rounds, {per_round} per round, ended by {record.finish_reason}."
    pairs = zip(page.detail.rounds, record.rounds, strict=True)
    output = "".join(_round(number, detail, step, show) for number, (detail, step) in enumerate(pairs, 1))
    body = (
        f'<nav><a href="{INDEX}">all requests</a></nav><h1>Request {_code(record.request_id)}</h1>'
        f"<p>{_code(run['method'])}. {_setting(run)} {result}</p>{_legend()}"
        f"<details><summary>Prompt</summary><pre>{escape(prompt)}</pre></details>"
        f'<main class="output">{output}</main>'
    )
    return shell(f"Request {record.request_id}", body, CSS)


def _setting(run: Fields) -> str:
    models = [escape(model_sentence(model)) for model in (run.get("models") or {}).values() if model]
    dataset = escape(str((run.get("dataset") or {}).get("name", "unnamed dataset")))
    return f"{dataset}; {'; '.join(models)}; {escape(time_kind(dict(run)))}."


def _legend() -> str:
    items = "".join(
        f'<li class="{name}"><b>{origin.mark}</b> {escape(origin.meaning)}</li>' for name, origin in ORIGINS.items()
    )
    hint = "Point at a token, tap it, or move to it with Tab: its round's tree shows below. A bar begins every round."
    every = '<label class="hint"><input type="checkbox" class="every"/> Show every round\'s tree at once</label>'
    return f'<ul class="legend">{items}</ul><p class="hint">{hint}</p>{every}'


def _round(number: int, detail: RoundDetail, step: RoundRecord, show: Show) -> str:
    """The committed tokens, and the tree that shows while one of them is pointed at or has the focus."""
    origins = [*(_origin(detail, node) for node in detail.path), "extra"]
    tokens = [*(detail.tokens[node] for node in detail.path), detail.bonus][: detail.committed]
    text = "".join(
        f'<wbr><span class="token {origin}">{visible(show(token), breaks=True)}</span>'
        for origin, token in zip(origins, tokens, strict=False)
    )
    heading = f'<b id="round-{number}">{_heading(number, detail, step)}</b>'
    tree = f'<span class="tree">{heading}{_tree(detail, show)}</span>'
    return f'<span class="round" tabindex="0" role="group" aria-describedby="round-{number}">{text}{tree}</span>'


def _heading(number: int, detail: RoundDetail, step: RoundRecord) -> str:
    parts = [f"{step.drafted} drafted"]
    if detail.inherited:
        parts.append(f"{detail.inherited} kept from the round before")
    parts += [f"{step.submitted} sent", f"{step.accepted} accepted", f"{step.committed} committed"]
    if step.committed < step.accepted + 1:
        parts.append("the end cut off the rest")
    if step.aligned:
        parts.append("aligned: the next round goes on below the guess")
    return f"Round {number}: {', '.join(parts)}"


def _origin(detail: RoundDetail, node: int) -> str:
    if node in detail.path:
        return "reused" if node <= detail.inherited else "accepted"
    if node in detail.submitted:
        return "rejected"
    return "proactive" if node >= len(detail.tokens) - detail.proactive else "unsent"


def _tree(detail: RoundDetail, show: Show) -> str:
    """Indented text, a node per line; the extra token stands below the last accepted node."""
    origins = {node: _origin(detail, node) for node in range(1, len(detail.tokens))}
    spare = {kind: [node for node, origin in origins.items() if origin == kind] for kind in SHOWN}
    hidden = {node for kind, most in SHOWN.items() for node in spare[kind][most:]}
    lines = [_line("root", 0, "•", show(detail.tokens[0]), "")]
    for node, depth in _walk(detail, hidden):
        if node is None:
            lines.append(_line("extra", depth, ORIGINS["extra"].mark, show(detail.bonus), ""))
        else:
            probability = f"{100 * detail.probabilities[node]:.0f}%"
            text = show(detail.tokens[node])
            lines.append(_line(origins[node], depth, ORIGINS[origins[node]].mark, text, probability))
    if hidden:
        lines.append(f'<span class="line">and {len(hidden)} more that came to nothing</span>')
    return "".join(lines)


def _walk(detail: RoundDetail, hidden: set[int]) -> Iterator[tuple[int | None, int]]:
    """Nodes below the root in depth-first order with their depths; None is the extra token."""
    children: dict[int, list[int | None]] = {node: [] for node in range(len(detail.tokens))}
    children[detail.path[-1] if detail.path else 0].append(None)
    for child, parent in enumerate(detail.parents):
        if child and child not in hidden:
            children[parent].append(child)
    waiting = [(node, 1) for node in reversed(children[0])]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        if node is not None:
            waiting += [(below, depth + 1) for below in reversed(children[node])]


def _line(kind: str, depth: int, mark: str, text: str, note: str) -> str:
    indent = "  " * depth
    return f'<span class="line {kind}">{indent}<b>{mark}</b> <span class="token">{visible(text)}</span> {note}</span>'


def visible(text: str, *, breaks: bool = False) -> str:
    """Escaped text whose white space and control characters can be seen; `breaks` keeps line breaks as well."""
    return "".join(_visible_character(character, breaks) for character in text) or "<i>∅</i>"


def _visible_character(character: str, breaks: bool) -> str:
    if character in REPLACED:
        return f"<i>{REPLACED[character]}</i>" + ("\n" if breaks and character == "\n" else "")
    if category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"<i>\\u{ord(character):04x}</i>"
    return escape(character)


def token_text(tokenizer: Any) -> Show:
    """The text of single tokens: as decoded, or the vocabulary's own piece where that is no whole character."""
    known: dict[int, str] = {}

    def show(token: int) -> str:
        if token not in known:
            known[token] = _piece(tokenizer, token)
        return known[token]

    return show


def _piece(tokenizer: Any, token: int) -> str:
    text, piece = str(tokenizer.decode([token])), str(tokenizer.convert_ids_to_tokens(token))
    if "\ufffd" in text:
        return piece
    # Tokenizers that mark a word's beginning drop the space of a text's first word.
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text


def _code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"
