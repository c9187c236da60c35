"""Random histories, whose drivers die on their way, end as the rules say; `make faults` plays thousands of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.random_histories import play_and_compare

pytestmark = pytest.mark.filterwarnings("ignore::windrow.batching.rules.ShortWindowWarning")

SOME = 100  # histories of a ledger, which takes as long with ten


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_embedded(tmp_path: Path, seed: int) -> None:
    """Three hundred histories give what follows from the rules on the embedded engine."""
    play_and_compare(tmp_path, seed, SOME, {"embedded": EMBEDDED})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_spark(tmp_path: Path, seed: int, spark_engine: EngineFactory) -> None:
    """A thousand histories give what follows from the rules, and on Spark the same digest."""
    play_and_compare(tmp_path, seed, 2 * SOME, {"embedded": EMBEDDED, "spark": spark_engine})
