"""Keep the result of a command beside its committed page, from which `skit report` makes the page again.

    python scripts/keep_result.py build/pair/reports/wan/20261129T102649Z-bench-... results/reference/pair/wan

Numbers have nine significant digits, beyond which processors differ in how they add up, and the file is compressed.
A corpus that a method reads is named by its file alone: the folders are of the machine that decoded.
"""

import argparse
import json
import lzma
import re
from pathlib import Path
from typing import Any

from specbench_kit.core.files import replace_file
from specbench_kit.core.typed_json import parse
from specbench_kit.reports.comparison.tables import CSV_DIGITS
from specbench_kit.reports.study import RUN
from specbench_kit.runs.folder import to_json, write_text
from specbench_kit.studies.kinds import studies_in

CORPUS = re.compile(r"(corpus=)[^,)\s]*/")


def rounded(value: Any) -> Any:
    """Return a JSON value whose numbers have no more digits than those of report.csv, and whose
    specs and labels name a corpus without its folders.
    """
    if isinstance(value, float):
        return float(f"{value:.{CSV_DIGITS}g}")
    if isinstance(value, str):
        return CORPUS.sub(r"\1", value)
    if isinstance(value, dict):
        return {
            rounded(key): Path(inner).name
            if key == "corpus" and isinstance(inner, str)
            else rounded(inner)
            for key, inner in value.items()
        }
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "report", type=Path, help="folder that skit bench or another command wrote"
    )
    arguments.add_argument("folder", type=Path, help="folder of the committed page")
    options = arguments.parse_args()
    keep(options.report, options.folder)


def keep(report: Path, folder: Path) -> None:
    """Keep every result in the folder that a command wrote, in that of a committed page."""
    for study in studies_in(report):
        if not study.kind.joint:
            write_text(folder / RUN, to_json(rounded(read(report / RUN))))
        pack(report / study.kind.summary, folder)


def read(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse(path.read_bytes())


def pack(source: Path, folder: Path) -> None:
    """Write a result into a folder, compressed."""
    text = json.dumps(rounded(read(source)), ensure_ascii=False, separators=(",", ":")) + "\n"
    replace_file(folder / f"{source.name}.xz", lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
