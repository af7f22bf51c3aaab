"""Names of run folders."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

KEY_DIGITS = 8


def unused_folder(out: Path, dataset: str, defining: Mapping[str, Any]) -> Path:
    """`<out>/<utc-time>-train-predictor-<dataset>-<hash of what defines the run>`, which does not exist yet."""
    key = hashlib.sha256(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    slug = re.sub(r"[^a-z0-9.]+", "-", dataset.lower()).strip("-.")
    name = f"{time}-train-predictor-{slug}-{key}"
    candidates = (out / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
