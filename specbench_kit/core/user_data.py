"""The folder for a user's own predictors, profiles and heads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_NOWHERE = Path(__file__).with_name("no-files-of-the-user")
"""A folder that does not exist."""
_hidden: ContextVar[bool] = ContextVar("_hidden", default=False)


def user_folder(kind: str) -> Path:
    """Return the user's folder for `kind`: below $SKIT_HOME, otherwise in the platform's folder for
    user data.
    """
    if _hidden.get():
        return _NOWHERE / kind
    if home := os.environ.get("SKIT_HOME"):
        return Path(home).expanduser() / kind
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG specification says that a relative path is to be ignored.
    root = data_home if data_home.is_absolute() else Path.home() / ".local/share"
    return root / "specbench-kit" / kind


@contextmanager
def without_user_files() -> Iterator[None]:
    """Hide the user's own files, so that what runs inside depends on the kit and its options
    alone.
    """
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)
