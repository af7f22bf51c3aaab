"""One page per paper, and one table over all of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench_kit.reports.experiments.plots import sensitivity
from specbench_kit.reports.experiments.wording import outcome, percent, place_of, published
from specbench_kit.reports.writing.formatting import significant, times
from specbench_kit.reports.writing.markup import document, table
from specbench_kit.runs.folder import replace_file, write_text

Fields = Mapping[str, Any]
PAPERS = {"wisp": "WISP", "specpipe": "SpecPipe", "adaspec": "AdaSpec", "specedge": "SpecEdge"}


def write(folder: Path, found: Sequence[Fields]) -> None:
    """`README.md` over all experiments, a page for each paper, a figure for each experiment whose inputs were moved."""
    by_paper: dict[str, list[Fields]] = {}
    for one in found:
        by_paper.setdefault(one["name"].partition("/")[0], []).append(one)
        if one["sensitivity"]:
            replace_file(folder / _figure(one), sensitivity(one))
    write_text(folder / "README.md", document(_overview(by_paper)))
    for paper, experiments in by_paper.items():
        write_text(folder / f"{paper}.md", document([f"# {_called(paper)}", *map(_section, experiments)]))


def _overview(by_paper: Mapping[str, Sequence[Fields]]) -> Iterator[str]:
    yield "# Published experiments, reproduced"
    yield (
        "Published numbers beside what the kit makes of the same setting; ours are modelled or simulated, never "
        "measured on the paper's machines. Inputs that a paper leaves open are named on its page, each with what "
        "another value would do."
    )
    rows = [
        (f"[{one['name']}]({paper}.md)", one["summary"], f"{one['within']} / {one['compared']}", one["verdict"])
        for paper, experiments in by_paper.items()
        for one in experiments
    ]
    yield table(("experiment", "what", "within the goal", "verdict"), rows)
    yield "## Every number"
    yield table(
        ("experiment", *COLUMNS),
        [(one["name"], *line) for found in by_paper.values() for one in found for line in _lines(one)],
    )


COLUMNS = ("whose", "figure", "published", "ours", "ours / published")


def _lines(one: Fields) -> Iterator[tuple[str, ...]]:
    for pair in one["published"]:
        ours = (pair["simulated"] or {}).get("mean")
        stands = published(pair) or "not in the text"
        yield (place_of(pair), pair["metric"], stands, significant(ours, 4), outcome(pair))


def _section(one: Fields) -> str:
    head = f"## {one['name']}: {one['summary']}"
    parts = [head, f"{one['source']}. {one['reading']}".strip(), f"**{one['verdict']}**", _numbers(one)]
    if one["assumed"]:
        assumed = [(a["name"], a["value"], a["effect"]) for a in one["assumed"]]
        parts.append(table(("assumed", "value", "where another would lead"), assumed))
    if one["sensitivity"]:
        moves = [
            (move["name"], move["value"], times(move["effect"]), percent(_range(move))) for move in one["sensitivity"]
        ]
        parts.append(table(("input", "moved to", "mean change of ours", "largest change"), moves))
        parts.append(f"![What each assumed input does to every number]({_figure(one)})")
    parts.append(f"`skit reproduce {one['name']}`")
    return "\n\n".join(parts)


def _numbers(one: Fields) -> str:
    """With ratios of ratios where there is a series that all others are held against."""
    lines = list(_lines(one))
    if not one["against"]:
        return table(COLUMNS, lines)
    ratios = [pair["ratio_of_ratios"] for pair in one["published"]]
    more = [(times(r["published"]), times(r["simulated"]), times(r["ratio"])) if r else ("–", "–", "–") for r in ratios]
    head = (*COLUMNS, f"{one['against']} over it, published", "ours", "ratio of ratios")
    return table(head, [(*line, *tail) for line, tail in zip(lines, more, strict=True)])


def _range(move: Fields) -> float:
    return max((abs(after / before - 1) for before, after in move["ratios"].values()), default=0.0)


def _figure(one: Fields) -> str:
    return f"plots/{one['name'].replace('/', '-')}.svg"


def _called(paper: str) -> str:
    return PAPERS.get(paper, paper)
