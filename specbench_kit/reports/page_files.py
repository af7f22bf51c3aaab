"""The files of one page: its pictures, each drawn once, and its texts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specbench_kit.core.files import replace_file
from specbench_kit.reports import render_html
from specbench_kit.reports.document import Figure
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.runs.folder import encode

PLOTS = "plots"
FIGURES = ("png", "svg", "pdf")


class PageFiles:
    """Writes the files of a page into a folder, each whole or not at all, and keeps drawings for
    its HTML.

    `setting` stands below the title of every picture; `bare` pictures have neither, for a paper of one's own.
    """

    def __init__(
        self,
        folder: Path,
        formats: Sequence[str],
        setting: str,
        *,
        bare: bool = False,
        size: str = "screen",
    ) -> None:
        self.folder = folder
        self.figures: list[Figure] = []
        self.drawings: dict[str, str] = {}
        """SVG texts for the page, by the paths of the figures, less their suffixes."""
        self.suffixes = [suffix for suffix in FIGURES if suffix in formats]
        self._shows_drawings = "html" in formats
        self._setting = setting
        self._bare = bare
        self._size = size

    @property
    def has_pictures(self) -> bool:
        """Whether one of the formats shows pictures."""
        return bool(self.suffixes) or self._shows_drawings

    def draw(self, picture: Picture) -> Iterator[Path]:
        """Draw a picture, write it in the formats asked for, and note its figure."""
        suffixes = sorted({*self.suffixes, *(["svg"] if self._shows_drawings else [])})
        drawn = draw(picture, self._setting, suffixes, bare=self._bare, size=self._size)
        yield from self.write_picture(picture.name, drawn)
        self.figures.append(
            Figure(picture.title, self.path(picture.name), f"{picture.title}. {picture.note}")
        )

    def write_picture(self, name: str, drawn: Mapping[str, bytes]) -> Iterator[Path]:
        """Write a drawn picture in the formats asked for, and keep its SVG for the page."""
        if "svg" in drawn:
            self.keep(name, drawn["svg"])
        for suffix in self.suffixes:
            if suffix in drawn:
                yield self.write(f"{PLOTS}/{name}.{suffix}", drawn[suffix])

    def keep(self, name: str, svg: bytes) -> None:
        """Keep a drawing for the page; one that comes from elsewhere must be safe."""
        self.drawings[f"{PLOTS}/{name}"] = render_html.inline_svg(svg.decode(), name)

    def path(self, name: str) -> str:
        """Return the file of a picture to which a text points."""
        return f"{PLOTS}/{name}.{next(iter(self.suffixes), 'svg')}"

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file, in UTF-8 if it is a text."""
        path = self.folder / name
        replace_file(path, encode(content) if isinstance(content, str) else content)
        return path
