"""The two forms in which Spark commits, as a test asks for them: what is read decides (`strategy.py`)."""

from __future__ import annotations

from typing import Literal

import pytest

from windrow.ledger.strategy import MERGE, OVERWRITE

Form = Literal["merging", "overwriting"]
FORMS: tuple[Form, ...] = ("overwriting", "merging")
RECORDED = {"overwriting": OVERWRITE, "merging": MERGE}


def have_spark(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each microbatch in this process read all open batches, which it then overwrites, or what can change only.

    A flush needs all of them, and overwrites in any case.
    """
    monkeypatch.setattr("windrow.runtime.processing.reads_all", lambda opened, messages: form == "overwriting")
