"""Where a user's own predictors and profiles are kept."""

import os
from pathlib import Path


def user_folder(kind: str) -> Path:
    """The user's folder for `kind`: below SKIT_HOME, else in the platform's folder for data."""
    if home := os.environ.get("SKIT_HOME"):
        return Path(home).expanduser() / kind
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    root = shared if shared.is_absolute() else Path.home() / ".local/share"
    return root / "specbench-kit" / kind
