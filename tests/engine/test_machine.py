"""Histories of everything that can happen to a ledger, on both engines."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import one_in
from tests.engine.factory import EngineFactory
from tests.engine.histories import Histories

NIGHTLY = 10_000
EXAMPLES = settings.default.max_examples


class TestHistories:
    def test_embedded(self, histories: type[Histories]) -> None:
        """Whatever happens, in whatever order: at every version of the ledger the books balance and nothing final has
        changed, and in the end it is what an undisturbed run over the same log gives, by all accounts that there
        are.
        """
        chosen = settings(one_in(1 if EXAMPLES >= NIGHTLY else 8), stateful_step_count=12)
        run_state_machine_as_test(histories, settings=chosen)

    @pytest.mark.slow
    def test_spark(self, histories: type[Histories], spark: Any) -> None:
        """The same of Spark, beside drivers, and what is done by hand, on the embedded engine."""
        few = settings(max_examples=max(3, EXAMPLES // 200), stateful_step_count=6, phases=[Phase.generate])
        run_state_machine_as_test(lambda: histories(EngineFactory("spark", spark)), settings=few)
