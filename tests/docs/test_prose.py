"""Links of the pages lead somewhere, all pages are found from the README, and the commands in the prose are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, pages
from tests.docs.prose import anchors, inline_code, links, target
from tests.docs.reference import generate

PAGES = {page.path: page for page in pages()}
FIRST_WORDS = {name.partition(" ")[0] for name in generate.commands()}
OPTIONS = {
    first: {
        word
        for name, command in generate.commands().items()
        for parameter in command.params
        for word in parameter.opts
        if name.partition(" ")[0] == first
    }
    for first in FIRST_WORDS
}
COMMAND = re.compile(r"(?:^|[\s/=\"'`])windrow ([a-z]+)(?= |$|[\"'`])([^\n#|>&;]*)", re.MULTILINE)


@pytest.mark.parametrize("path", PAGES)
def test_links_resolve(path: str) -> None:
    """Each link of a page leads to a file that is there, and its anchor to a heading of it."""
    for link in links(PAGES[path]):
        file, anchor = target(PAGES[path], link)
        assert file.exists(), f"{path} leads to {link}, which is not there"
        known = anchors(file.read_text(encoding="utf-8")) if anchor else set()
        assert not anchor or anchor in known, f"{path} leads to {link}; {file.name} has {sorted(known)}"


def test_readme_leads_to_every_page() -> None:
    """From the README a reader finds every page."""
    assert set(PAGES) - reached("README.md") == set()


def reached(path: str) -> set[str]:
    """Return the pages that links lead to from a page."""
    pages, left = set(), [path]
    while left:
        page = left.pop()
        if page in PAGES and page not in pages:
            pages.add(page)
            files = [target(PAGES[page], link)[0] for link in links(PAGES[page])]
            left += [str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)]
    return pages


@pytest.mark.parametrize("path", PAGES)
def test_commands_are_there(path: str) -> None:
    """Every command, option and make target that the prose of a page names is there."""
    for code in inline_code(PAGES[path]):
        for name in re.findall(r"^windrow ([a-z]+)", code):
            assert name in OPTIONS, f"{path}: there is no `windrow {name}`"
        require_options(code, path)
        for name in re.findall(r"^make ([a-z-]+)", code):
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert f"\n{name}:" in makefile, f"{path}: there is no `make {name}`"


@pytest.mark.parametrize("path", PAGES)
def test_options_in_blocks(path: str) -> None:
    """Commands in units, workflows, crontabs and whatever else starts nothing here have the options that they are
    given.
    """
    for block in PAGES[path].every_block:
        require_options(block.text, block.place)


def require_options(text: str, place: str) -> None:
    """Raise when a text gives a command an option that it does not have."""
    for name, arguments in COMMAND.findall(text):
        unknown = set(re.findall(r"(?<!\S)--[a-z-]+", arguments)) - OPTIONS.get(name, set()) - {"--help"}
        assert not unknown, f"{place}: windrow {name} has no {unknown}"
