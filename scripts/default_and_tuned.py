"""Compare every method with its defaults, with tuned options and with its authors' claim, for each deployment.

    python scripts/default_and_tuned.py FOLDER NAME [NAME ...] --out results/reference/tuned

FOLDER holds a file tuned-NAME.json of `skit tune` for every deployment.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specbench_kit.core.typed_json import convert
from specbench_kit.methods.base import methods
from specbench_kit.reports.document import code
from specbench_kit.reports.render_markdown import table
from specbench_kit.studies.bench.tuned_options import TunedMethod, TunedOptions, load

COLUMNS = ["method", "as it comes, tokens/s", "tuned, tokens/s", "tuned / as it comes", "options", "reported"]


def lines(chosen: Mapping[str, TunedMethod]) -> Iterator[list[str]]:
    """Return one line per method, the fastest tuned method first."""
    for name, tuned in sorted(chosen.items(), key=lambda item: -item[1].tokens_per_s):
        options = tuned.spec.partition(":")[2]
        default = tuned.default_tokens_per_s
        shown = ["–", f"{tuned.tokens_per_s:.1f}", "–"]
        if default is not None:
            shown = [f"{default:.1f}", f"{tuned.tokens_per_s:.1f}", f"{tuned.tokens_per_s / default:.2f}"]
        yield [code(name), *shown, code(options) if options else "", methods.get(name).reported_result]


def document(found: Mapping[str, TunedOptions]) -> str:
    """Return the page, with one section per deployment."""
    (first, *_) = found.values()
    target = convert(dict[str, dict[str, object]], first.run["models"])["target"]["name"]
    parts = [
        "# As they come, and tuned",
        f"`skit tune` replays {first.run['requests']} recorded requests of {target} with "
        f"its draft model in the times of a deployment, greedy, one at a time. One half chooses the options of each "
        f"method, with at most {first.budget} trials for every method alike; the figures are those of the other half. "
        "A tuned method that is slower here than as it comes was chosen by the prompts of the first half. Methods that "
        "draft trees, fill a pipeline or read the target's states cannot be replayed.",
    ]
    for name, options in found.items():
        parts += [f"## {name}", table(COLUMNS, list(lines(options.methods)))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options: argparse.Namespace = parser.parse_args()
    names: Sequence[str] = options.names
    text = document({name: load(options.folder / f"tuned-{name}.json") for name in names})
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
