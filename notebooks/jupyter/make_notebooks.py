"""Write each notebook of `notebooks/` as an `.ipynb` beside this file, for Jupyter and VS Code: `make notebooks`.

The source is Databricks' format. A cell of SQL becomes a call of `at.sql`, and links lead to the same files from here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).parent
SOURCES = sorted(HERE.parent.glob("*.py"))
HEAD = "# Databricks notebook source"
SEPARATOR = "\n# COMMAND ----------\n"
MAGIC = "# MAGIC"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a notebook: its language, and its text without the marks of the format."""

    language: Literal["python", "sql", "md"]
    text: str


def cells(file: Path) -> list[Cell]:
    """Return the cells of a file in Databricks' source format. Raises ValueError for anything else."""
    head, _, body = file.read_text(encoding="utf-8").partition("\n")
    if head != HEAD:
        raise ValueError(f"{file.name} does not begin with {HEAD!r}")
    return [_cell(part.strip("\n")) for part in body.split(SEPARATOR)]


def _cell(text: str) -> Cell:
    lines = text.splitlines()
    marked = [line.startswith(MAGIC) for line in lines]
    if not any(marked):
        return Cell("python", text)
    if not all(marked):
        raise ValueError(f"a cell is either magic or Python: {lines[0]}")
    bare = [line.removeprefix(MAGIC).removeprefix(" ") for line in lines]
    match bare[0]:
        case "%md":
            return Cell("md", "\n".join(bare[1:]))
        case "%sql":
            return Cell("sql", "\n".join(bare[1:]))
        case other:
            raise ValueError(f"no cell of {other!r} is known here")


def converted(file: Path) -> str:
    """Return a notebook as the text of an `.ipynb` without results."""
    made = [_converted(cell, f"cell-{number}") for number, cell in enumerate(cells(file), 1)]
    notebook = new_notebook(cells=made, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _converted(cell: Cell, name: str) -> nbformat.NotebookNode:
    if cell.language == "md":
        here = re.sub(r"\]\(\.\./", "](../../", cell.text)
        return new_markdown_cell(re.sub(r"\]\((\w+)\.py\)", r"](\1.ipynb)", here), id=name)
    source = f'at.sql("""\n{cell.text}\n""")' if cell.language == "sql" else cell.text
    return new_code_cell(source, id=name)


def main() -> None:
    """Write all notebooks."""
    for file in SOURCES:
        (HERE / f"{file.stem}.ipynb").write_text(converted(file), encoding="utf-8")


if __name__ == "__main__":
    main()
