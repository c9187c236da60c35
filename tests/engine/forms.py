"""What Spark reads of the open batches, as a test asks for it (`strategy.py`)."""

from __future__ import annotations

from typing import Literal

import pytest

Form = Literal["reading all", "reading headers", "reading some"]
FORMS: tuple[Form, ...] = ("reading all", "reading headers", "reading some")


def have_spark(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each microbatch in this process read all open batches, or all headers, or what can change only."""
    monkeypatch.setattr("windrow.runtime.processing.reads_all", lambda *_: form == "reading all")
    monkeypatch.setattr("windrow.runtime.processing.keeps_headers", lambda *_: form == "reading headers")
