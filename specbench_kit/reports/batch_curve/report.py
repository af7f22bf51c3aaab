"""A table of speeds by batch size, with the batch size up to which each method pays off."""

from collections.abc import Sequence

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import render_markdown
from specbench_kit.reports.document import Document, Figure, Paragraph, Table, code
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.stored import Row, RunFile
from specbench_kit.reports.writing.formatting import ABSENT


def render(rows: Sequence[Row], run: RunFile, pictures: Sequence[str]) -> str:
    """Return the report as Markdown."""
    return render_markdown.render(build(rows, run, pictures))


def build(rows: Sequence[Row], run: RunFile, pictures: Sequence[str]) -> Document:
    """Return the report; `pictures` are files in `plots/` beside it."""
    sizes = sorted({row["batch_size"] for row in rows})
    points = {(row["method"], row["batch_size"]): row for row in rows}
    cells = []
    for label in dict.fromkeys(row["method"] for row in rows):
        of_sizes = [points.get((label, size)) for size in sizes]
        speeds = [ABSENT if row is None else f"{row['throughput']:.1f} / {1e3 * row['tpot_s']:.1f}" for row in of_sizes]
        baselines = [points.get((BASELINE, size)) for size in sizes]
        limit = ABSENT if label == BASELINE or baselines[0] is None else _largest_faster(of_sizes, baselines)
        cells.append((code(label), *speeds, limit))
    text = (
        f"{run.get('requests')} requests per size, {time_kind(dict(run))}. Tokens per second of the batch / mean ms "
        "per token of a request. A method pays off where its tokens per second exceed those of autoregressive decoding "
        "at the same batch size."
    )
    table = Table(("method", *(f"B = {size}" for size in sizes), "pays off up to B ="), cells)
    figures = [Figure(picture, f"plots/{picture}") for picture in pictures]
    title = f"Batch sizes on {(run.get('dataset') or {}).get('name')}"
    return Document(title, [Paragraph(text), table, *figures])


def _largest_faster(rows: Sequence[Row | None], baselines: Sequence[Row | None]) -> str:
    """Return the largest batch size up to which a method is faster than the baseline at every size."""
    largest = "none"
    for row, baseline in zip(rows, baselines, strict=True):
        if row is None or baseline is None or row["throughput"] <= baseline["throughput"]:
            break
        largest = str(row["batch_size"])
    return largest
