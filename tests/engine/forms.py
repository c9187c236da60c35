"""What Spark reads of the open batches, as a test asks for it: all, or those that can change (`strategy.py`)."""

from __future__ import annotations

from typing import Literal

import pytest

Form = Literal["reading all", "reading some"]
FORMS: tuple[Form, ...] = ("reading all", "reading some")


def have_spark(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each microbatch in this process read all open batches, or what can change only; a flush needs all."""
    monkeypatch.setattr("windrow.runtime.processing.reads_all", lambda opened, messages: form == "reading all")
