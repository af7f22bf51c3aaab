"""Files that appear whole or not at all."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a temporary file beside `path` and rename it, so that no reader sees half of it; make the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
