"""A hook of mkdocs: what a page needs to be as good on the site as on the code's own host.

Links that leave docs/ lead to a copy of the linked file in the site. A picture follows the reader's
choice of light or dark, and not only the system's.

Pages link to code and tests by their place in the repository. The site has each linked file as
text, so that no link needs a host. A link to a folder, or to a file that stays out of the site,
becomes its words alone. A list may follow its paragraph without an empty line, as in CommonMark.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
PICTURE = re.compile(
    r"<picture>\s*<source [^>]*?srcset=\"(?P<dark>[^\"]+)\">\s*"
    r"<img src=\"(?P<light>[^\"]+)\"(?P<alt>[^>]*)>\s*</picture>"
)
# What the theme's own style shows in one of its schemes only.
BOTH = r'<img src="\g<light>#only-light"\g<alt>><img src="\g<dark>#only-dark"\g<alt>>'
ITEM = re.compile(r"([-*]|\d+\.) ")
DOCS = Path(__file__).parent
ROOT = DOCS.parent
LEFT_OUT = (DOCS / "upstream",)


def on_files(files: Files, config: Any) -> Files:
    for page in files.documentation_pages():
        text = page.content_string
        for _, target in LINK.findall(text):
            place = _outside(page.src_uri, target)
            if place is not None and place.is_file():
                uri = _uri_of(place)
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    def led(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        place = _outside(page.file.src_uri, target)
        if place is None:
            return match[0]
        if not place.is_file():
            return words
        return f"[{words}]({os.path.relpath(_uri_of(place), os.path.dirname(page.file.src_uri))})"

    return _with_lines_before_lists(PICTURE.sub(BOTH, LINK.sub(led, markdown)))


def _outside(src_uri: str, target: str) -> Path | None:
    """The linked place, if the site does not have it as a page or a picture."""
    place = (DOCS / os.path.dirname(src_uri) / target).resolve()
    if any(place.is_relative_to(folder) for folder in LEFT_OUT):
        return place
    return None if place.is_relative_to(DOCS) else place


def _with_lines_before_lists(markdown: str) -> str:
    lines: list[str] = []
    in_fence = False
    for line in markdown.splitlines():
        before = lines[-1] if lines else ""
        in_fence ^= line.lstrip().startswith("```")
        begins = ITEM.match(line) and before.strip() and not before.startswith(" ")
        if begins and not in_fence and not ITEM.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _uri_of(place: Path) -> str:
    """With `.txt`, so that a browser shows the file."""
    return f"source/{place.relative_to(ROOT).as_posix()}.txt"
