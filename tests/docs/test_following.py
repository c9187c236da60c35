"""What the runner of the pages refuses and compares: a test that cannot fail tests nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.conftest import Command
from tests.docs import results, worlds
from tests.docs.following import Following, missing, require_printed, split
from tests.docs.pages import Page


@pytest.fixture
def follow(windrow: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str], made: Any) -> Any:
    """Follow a page of this text, in a directory with messages."""
    worlds.prepare("messages", tmp_path, made)

    def follow(text: str) -> None:
        following = Following(windrow, capfd, lambda: pytest.fail("nothing here needs Spark"))
        for block in Page("page.md", text).blocks:
            following.follow(block)

    return follow


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\nwindrow\n```", "no language"),
        ("```scala\nval x = 1\n```", "one that nobody runs: 'scala'"),
        ("<!-- not run: slow -->\n```scala\nval x = 1\n```", "say why"),
        ("<!-- not runn: it needs a workspace -->\n```scala\nval x = 1\n```", "nobody knows the remark"),
        ("```python\nassert False, 'in python'\n```", "in python"),
        ("<!-- prints: 2 -->\n```python\nprint(1)\n```", "'2' is not printed"),
        ("<!-- prints once: 1 -->\n```python\nprint(1)\n```", "a second time it prints 1"),
        ("```console\nwindrow status\n```", "windrow status: 3"),
        ("<!-- ends with: 3 -->\n```console\nwindrow init\n```", "windrow init: 0"),
        ("```console\nwindrow init | cat\n```", "stands in an sh block"),
        ("```console\nkubectl apply\n```", "nobody knows how to run 'kubectl'"),
        ("```console\nmake nothing\n```", "there is no make nothing"),
        ("```console\npip install 'windrow-delta[zigbee]'\n```", "there are no extras {'zigbee'}"),
        ("```console\npip install 'windrow[mqtt]'\n```", "called windrow-delta, not windrow"),
        ("```console\nspark-submit job.py\n```", "there is no ['job.py']"),
        ("```console\n$ windrow init\nWrote another.toml\n```", "is not printed"),
        ("```sh\nexit 4\n```", "page.md:1: 4"),
        ("```toml\n[rules]\nwidnow = '1s'\n```", "widnow"),
        ("```toml\ncolour = 'red'\n```", "neither settings"),
        ("```json\n{,}\n```", "Expecting property name"),
        ('<!-- output of: windrow init --json -->\n```json\n{"colour": 1}\n```', "does not print ['colour']"),
        ("```yaml\na: [\n```", "while parsing"),
        ("```ini\nnothing\n```", "no section headers"),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```", "'2' is not printed"),
        ("```python\n", "has no end"),
    ],
)
def test_refuses(follow: Any, text: str, says: str) -> None:
    """A block that is wrong, or that nobody runs, fails the page and says where."""
    with pytest.raises(Exception, match=r"[\s\S]*") as caught:
        follow(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "```text\nnobody runs this\n```",
        "<!-- not run: it needs a workspace -->\n```scala\nval x = 1\n```",
        "<!-- ends with: 3 -->\n```console\nwindrow status\n```",
        "```console\n$ windrow init\nWrote windrow.toml. ... ready.\n```",
        "```console\nwindrow ingest data/*.parquet  # a comment\nWINDROW_RULES__WINDOW=20s windrow run\n```",
        "<!-- file: job.py -->\n```python\nprint(6 * 7)\n```\n<!-- prints: 42 -->\n```console\npython job.py\n```",
        "<!-- given: x = 7 -->\n<!-- prints: 8 -->\n```python\nprint(x + 1)\n```",
        "```python\nx = 1\n```\n```python\nprint(x)\n```\n<!-- output -->\n```text\n1\n```",
        "```sh\nwindrow init > said\n```",
        '<!-- output of: windrow init --json -->\n```json\n{"created": false}\n```',
        "```yaml\non: [push]\n```\n```ini\n[Service]\nExecStart=windrow run\n```",
    ],
)
def test_follows(follow: Any, text: str) -> None:
    """What a page may say of its blocks holds: files, statuses, output, blocks that build on each other."""
    follow(text)


def test_for_ever(follow: Any) -> None:
    """A command that goes on forever is stopped when it has spoken."""
    follow("```console\nwindrow init\nwindrow status --watch\n```")


def test_statements() -> None:
    """A semicolon ends a statement, unless it stands in quotes or in a comment."""
    assert split("SELECT ';' -- one; two\n; SELECT 2;\n-- three\n") == ["SELECT ';' -- one; two", "SELECT 2"]


def test_missing_fields() -> None:
    """A field that is shown must be there, at any depth; of a list any element may have it."""
    real = {"a": 1, "b": [{"c": 1}, {"d": {"e": 2}}]}
    assert missing({"a": 0, "b": [{"d": {"e": 0}}]}, real) == []
    assert missing({"b": [{"d": {"f": 0}}], "g": 1}, real) == ["b[].d.f", "g"]
    assert missing({"a": {"b": 1}}, real) == ["a"]


def test_order_of_output() -> None:
    """Lines of output are looked for in their order."""
    require_printed("here", ["a  b", "c...e"], "x\na b\ny\ncde\n")
    with pytest.raises(AssertionError):
        require_printed("here", ["c", "a"], "a\nc\n")


def test_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stand in a page as tables, written anew in their places, without what differs from run to run."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    query = "```sql\nSELECT 1\n```\n\n<!-- result, but for: ms -->\n"
    (tmp_path / "page.md").write_text(f"{query}| old |\n\nText.\n{query}\nEnd.\n", encoding="utf-8")
    time = pa.array([1_500_000], pa.timestamp("us", "UTC"))
    lines = results.shown(pa.table({"ms": [0.1], "at": time, "what": ["a|b\0"], "many": [[1, None]]}), ("ms",))
    assert lines[-1] == "| … | 1970-01-01 00:00:01.500 | a\\|b | 1;  |"
    page = Page("page.md", (tmp_path / "page.md").read_text(encoding="utf-8"))
    results.write("page.md", [(block.result, lines) for block in page.blocks if block.result])
    written = Page("page.md", (tmp_path / "page.md").read_text(encoding="utf-8"))
    assert [block.result.lines for block in written.blocks if block.result] == [lines, lines]
    assert "| old |" not in written.text
    assert written.text.endswith(f"{lines[-1]}\n\nEnd.\n")
