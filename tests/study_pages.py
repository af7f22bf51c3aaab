"""The folder of any command gives its page again, from its two files alone."""

import shutil
from pathlib import Path

from command_line import skit_here

from specbench_kit.reports.study import StudyKind
from specbench_kit.studies.kinds import studies_in


def assert_made_again(folder: Path, scratch: Path) -> None:
    """Assert that `skit report` makes every page, table and picture anew, byte for byte."""
    copy = scratch / folder.name
    shutil.copytree(folder, copy)
    studies = studies_in(copy)
    assert studies
    removed = [path for study in studies for path in made_of(study.kind, copy)]
    for study in studies:
        removed += [copy / name for name in study.kind.files(study)]
        for picture in study.kind.pictures(study):
            removed += [copy / "plots" / f"{picture.name}.{suffix}" for suffix in ("png", "svg")]
    for path in removed:
        path.unlink()
    done = skit_here("report", copy)
    assert done.returncode == 0, done.stderr
    assert studies[0].kind.headline(studies[0])
    for path in removed:
        assert path.read_bytes() == (folder / path.relative_to(copy)).read_bytes(), path


def made_of(kind: StudyKind, folder: Path) -> list[Path]:
    """The pages of a kind of study in a folder."""
    return [folder / f"{kind.page}.{suffix}" for suffix in ("md", "html")]
