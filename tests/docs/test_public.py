"""The public surface: what it consists of, that docs and notebooks use nothing else, and what its docstrings say."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow import errors

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.py")])
MODULES = (
    "windrow", "windrow.engine.spark.stores", "windrow.errors", "windrow.formats", "windrow.ingest.sample",
    "windrow.notebook", "windrow.operate", "windrow.producer", "windrow.reading", "windrow.reading.plot",
    "windrow.reading.tuning", "windrow.replaying", "windrow.testing", "windrow.topology", "windrow.verify",
    "windrow.verify.quality",
)  # fmt: skip
IMPORT = re.compile(r"from (windrow[\w.]*) import (?:\(([\w,\s]+)\)|([\w, ]+))")
FUNCTIONS = [name for name in windrow.__all__ if inspect.isfunction(getattr(windrow, name))]
CALLS = [(name, getattr(windrow, name)) for name in FUNCTIONS] + [
    *((name, getattr(windrow, name).__init__) for name in ("Buffer", "Producer", "RawProducer", "Rules", "Topology")),
    ("Settings.load", windrow.Settings.load),
]


def public_names(module: str) -> set[str]:
    """Return the public names of a module: those it lists, without a list the classes that it defines."""
    imported = import_module(module)
    own = [name for name, value in vars(imported).items() if inspect.isclass(value) and value.__module__ == module]
    return set(getattr(imported, "__all__", own))


def imports(page: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from the package in a page."""
    for module, several, some in IMPORT.findall(page.read_text(encoding="utf-8")):
        names = [name.split(" as ")[0].strip() for name in (several or some).split(",")]
        yield from ((module, name) for name in names if name)


def test_pages_import_public_names() -> None:
    """What docs and notebooks import is public."""
    imported = {(page.name, module, name) for page in PAGES for module, name in imports(page)}
    assert len(imported) > 20
    for page, module, name in sorted(imported):
        is_module = f"{module}.{name}" in MODULES
        assert is_module or (module in MODULES and name in public_names(module)), f"{page}: {module}.{name}"


@pytest.mark.parametrize("module", MODULES)
def test_names_are_there(module: str) -> None:
    """Each public name of a module exists, and what is a class or function says what it is."""
    names = public_names(module)
    assert names
    for name in names:
        member = getattr(import_module(module), name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert inspect.getdoc(member), f"{module}.{name}"


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_sections(name: str, call: Any) -> None:
    """A public call says what each parameter is, what it returns, what it raises, and shows an example."""
    text = inspect.getdoc(call) or ""
    parameters = [parameter for parameter in inspect.signature(call).parameters if parameter not in ("self", "cls")]
    if len(parameters) > 1 and name != "Rules":
        described = re.findall(r"^    (\w+): ", text.partition("\nArgs:\n")[2].partition("\n\n")[0], re.MULTILINE)
        assert described == parameters
    if call.__name__ != "__init__":
        assert "\nReturns:\n" in text
    raised = re.findall(r"^    (\w+): ", text.partition("\nRaises:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert raised
    assert all(hasattr(errors, error_name) or error_name == "ValueError" for error_name in raised)
    assert "\nExample:\n    >>> " in text


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a depot of one message and its ledger, in which the batch is closed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDROW_ENGINE", "embedded")
    with windrow.Producer("data/depot", "pump") as producer:
        producer.send(key="pump-1", type="temperature", payload="21.5")
    windrow.run(windrow.Settings(depot="data/depot", ledger="data/ledger", engine="embedded"))
    from windrow.cli import main

    assert main(["tick", "--all", "--depot", "data/depot", "--ledger", "data/ledger"]) == 0
    return tmp_path


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_examples(tables: Path, name: str, call: Any) -> None:
    """The example of a public call prints what it says, where it needs no Spark."""
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(call) or "", {"windrow": windrow}, name, None, None)
    assert test.examples
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert report == []
