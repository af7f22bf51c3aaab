"""A table of speeds by batch size, and where each method stops paying."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.markup import code, document, table
from specbench_kit.reports.writing.wording import time_kind

Rows = Sequence[Mapping[str, Any]]


def render(rows: Rows, about: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The report; `pictures` lie in `plots`."""
    sizes = sorted({row["batch_size"] for row in rows})
    labels = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["method"], row["batch_size"]): row for row in rows}
    speeds = [
        (code(label), *(_cell(found.get((label, size))) for size in sizes), _pays(label, sizes, found))
        for label in labels
    ]
    header = ["method", *(f"B = {size}" for size in sizes), "pays up to B ="]
    name = (about.get("dataset") or {}).get("name")
    return document(
        [
            f"# Batch sizes on {name}",
            f"{about.get('requests')} requests per size, {time_kind(dict(about))}. Tokens per second of the batch / "
            "mean ms per token of a request. A method pays where its tokens per second are above those of plain "
            "decoding at the same batch size.",
            table(header, speeds),
            *(f"![{picture}](plots/{picture})" for picture in pictures),
        ]
    )


def _cell(row: Mapping[str, Any] | None) -> str:
    return ABSENT if row is None else f"{row['throughput']:.1f} / {1e3 * row['tpot_s']:.1f}"


def _pays(label: str, sizes: Sequence[int], found: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """The largest batch size up to which it is faster at every size."""
    if label == BASELINE or (BASELINE, sizes[0]) not in found:
        return ABSENT
    paid = 0
    for size in sizes:
        pair = [found.get((one, size)) for one in (label, BASELINE)]
        if pair[0] is None or pair[1] is None or pair[0]["throughput"] <= pair[1]["throughput"]:
            break
        paid = size
    return str(paid) if paid else "none"
