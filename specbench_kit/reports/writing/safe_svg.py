"""Drawings from folders of others, reduced to what can neither run nor load anything."""

import re
from xml.etree import ElementTree

NAMESPACE = "http://www.w3.org/2000/svg"
ELEMENTS = frozenset(
    ("svg", "g", "defs", "path", "use", "clipPath", "pattern", "rect", "line", "circle", "polygon", "text", "tspan")
)
SHAPES = ("x", "y", "width", "height", "d", "points", "r", "cx", "cy", "viewBox", "transform", "patternUnits")
LOOKS = ("style", "class", "fill", "fill-opacity", "stroke", "stroke-width", "opacity", "clip-path")
ATTRIBUTES = frozenset(("id", "href", *SHAPES, *LOOKS))
EXTERNAL = re.compile(r"url\(\s*['\"]?(?!#)|image-set|\\|@", re.IGNORECASE)
"""Parts of a style that could load something from outside the drawing, openly or by escapes."""


def safe_svg(content: bytes) -> bytes:
    """Return the drawing's shapes and texts; raise ValueError if it is no drawing."""
    try:
        # What precedes the drawing could define entities that grow without bounds.
        root = ElementTree.fromstring("<svg" + content.decode().partition("<svg")[2])
        for element in list(root.iter()):
            for child in list(element):
                if _local(child.tag) not in ELEMENTS:
                    element.remove(child)
            element.tag = _local(element.tag)
            attributes = {_local(name): value for name, value in element.attrib.items()}
            element.attrib = {
                name: value
                for name, value in attributes.items()
                if name in ATTRIBUTES and not EXTERNAL.search(value) and (name != "href" or value.startswith("#"))
            }
        root.set("xmlns", NAMESPACE)
        return ElementTree.tostring(root)
    except (ElementTree.ParseError, RecursionError, UnicodeError) as error:
        raise ValueError(f"not a drawing ({error})") from error


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]
