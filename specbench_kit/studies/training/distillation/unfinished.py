"""Keeps the best weights of a training that has not ended, so that `--resume` goes on from them."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NAME = "unfinished"


@dataclass(frozen=True, slots=True)
class UnfinishedDraft:
    """The best weights so far, in a folder inside the one where the finished draft will be."""

    result: Path

    @property
    def folder(self) -> Path:
        """Return the folder of the best weights so far."""
        return self.result / NAME

    def start(self, *, resume: bool) -> Path:
        """Return the folder to resume from: that of an interrupted training, else the result's.

        Without `resume` the weights of an interrupted training are deleted.
        """
        if not resume:
            self.remove()
        return self.folder if self.folder.is_dir() else self.result

    def keep(self, save: Callable[[Path], None]) -> None:
        """Replace the weights by those that `save` writes; if it is interrupted, the earlier ones stay whole."""
        written = self.folder.with_name(f"{NAME}.writing")
        shutil.rmtree(written, ignore_errors=True)
        save(written)
        if not self.folder.is_dir():
            written.rename(self.folder)
            return
        # All checkpoints of a training have one configuration, so that any of them fits any weights.
        for file in sorted(written.iterdir()):
            os.replace(file, self.folder / file.name)
        written.rmdir()

    def remove(self) -> None:
        """Delete the weights: the finished draft took their place."""
        for folder in (self.folder, self.folder.with_name(f"{NAME}.writing")):
            shutil.rmtree(folder, ignore_errors=True)
