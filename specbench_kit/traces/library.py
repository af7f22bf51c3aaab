"""The traces of named pairs that come with the kit, which every command takes by name. Imports nothing heavy."""

from pathlib import Path

from specbench_kit.core.errors import SkitError, did_you_mean

BUNDLED = Path(__file__).with_name("bundled")
SUFFIX = ".parquet"


def bundled_traces() -> dict[str, Path]:
    """Return the files of the bundled traces by name."""
    return {path.name.removesuffix(SUFFIX): path for path in sorted(BUNDLED.glob(f"*{SUFFIX}"))}


def trace_file(path: Path) -> Path:
    """Return the file that an option names: the file itself, if there is one, or the bundled trace of that name."""
    if path.exists() or path.suffix == SUFFIX or len(path.parts) != 1:
        return path
    bundled = bundled_traces()
    if path.name not in bundled:
        known = ", ".join(bundled)
        raise SkitError(
            f"no trace '{path}'{did_you_mean(path.name, bundled)}: name a file of skit record, or a bundled trace"
            + (f" ({known})" if known else "")
        )
    return bundled[path.name]
