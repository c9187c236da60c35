from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.cli.conftest import windrow  # noqa: F401 - a fixture
from tests.docs import worlds


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Give a directory with the tables of the sample, which is made when somebody first asks for it."""

    @cache
    def made() -> Path:
        directory = tmp_path_factory.mktemp("sample")
        worlds.measure(directory)
        return directory

    return made
