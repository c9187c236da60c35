"""What stands between the code blocks of a page: links, anchors, inline code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import ROOT, Page

BLOCK = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?\)")
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)


def prose(page: Page) -> str:
    """Return a page without its code blocks and comments."""
    return BLOCK.sub("", COMMENT.sub("", page.text))


def inline_code(page: Page) -> list[str]:
    """Return the inline code of a page, each in one line."""
    return [" ".join(groups[1].split()) for groups in INLINE.findall(prose(page))]


def links(page: Page) -> list[str]:
    """Return where a page leads to inside the repository, as it is written there."""
    targets = LINK.findall(INLINE.sub("", prose(page)))
    # Inline code may be the text of a link, whose target must not go with it.
    targets += LINK.findall(re.sub(r"\[(`[^`]*`)+\]", "[code]", prose(page)))
    return sorted({link for link in targets if not re.match(r"[a-z]+:", link)})


def target(page: Page, link: str) -> tuple[Path, str]:
    """Return the file that a link leads to, and the anchor in it, which may be empty."""
    path, _, anchor = link.partition("#")
    here = ROOT / page.path
    return (here.parent / path).resolve() if path else here, anchor


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a text."""
    slugs: set[str] = set()
    for heading in HEADING.findall(BLOCK.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        number = next(n for n in range(len(slugs) + 1) if (f"{slug}-{n}" if n else slug) not in slugs)
        slugs.add(f"{slug}-{number}" if number else slug)
    return slugs
