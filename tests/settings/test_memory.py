"""Defaults that follow from the memory of a machine or a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from windrow.settings import memory
from windrow.settings.settings import Settings


@pytest.mark.parametrize("name", memory.LIMITS)
def test_container(tmp_path: Path, name: str) -> None:
    """In a container with little memory the driver processes fewer messages; without a limit the machine decides."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for text, messages in {"400000000\n": 100_000, "64000000000000\n": None, "max\n": None}.items():
        (tmp_path / name).write_text(text)
        assert memory.driver_messages(tmp_path) == (messages or memory.driver_messages(tmp_path / "none"))
    assert 0 < memory.driver_messages() <= memory.MAX_DRIVER_MESSAGES


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of `max_driver_messages` is what the memory has room for; a value that is given stands."""
    monkeypatch.setattr(memory, "memory_bytes", lambda limits: 2_000_000_000)
    assert Settings().max_driver_messages == 500_000
    assert Settings(max_driver_messages=700_000).max_driver_messages == 700_000
