"""The folder for a user's own predictors, profiles and heads."""

import os
from pathlib import Path


def user_folder(kind: str) -> Path:
    """Return the user's folder for `kind`: below $SKIT_HOME, otherwise in the platform's folder for user data."""
    if home := os.environ.get("SKIT_HOME"):
        return Path(home).expanduser() / kind
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG specification says that a relative path is to be ignored.
    root = data_home if data_home.is_absolute() else Path.home() / ".local/share"
    return root / "specbench-kit" / kind
