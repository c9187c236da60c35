"""What the trials gave, as a table and as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.trials.trial import Counted
from tests.guards.counting import GuardCount

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "trials.md"
BEGIN, END = "<!-- trials -->\n", "<!-- end of trials -->\n"
HEAD = ("fault", "engine", "times", "struck", "lost", "duplicated", "different")


@dataclass(slots=True)
class Result:
    """The sums over all tries of a fault on an engine."""

    fault: str
    engine: str
    times: int = 0
    struck: int = 0
    lost: int = 0
    duplicated: int = 0
    different: int = 0

    def add(self, counted: Counted) -> None:
        """Add one try."""
        self.times += counted.strikes
        self.struck += counted.struck
        self.lost += counted.lost
        self.duplicated += counted.duplicated
        self.different += bool(counted.differences)

    @property
    def sound(self) -> bool:
        """Tell whether nothing was lost, duplicated or different, and the fault struck at least once."""
        return not (self.lost or self.duplicated or self.different) and self.struck > 0

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON knows it."""
        return asdict(self)


def markdown(results: list[Result]) -> str:
    """Return the table of a page, with the sums below."""
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [tuple(str(value) for value in result.to_dict().values()) for result in results]
    sums = [sum(getattr(result, name) for result in results) for name in HEAD[2:]]
    rows.append(("**all**", "", *(f"**{value}**" for value in sums)))
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)


def of_guards(guards: list[GuardCount]) -> str:
    """Return how often guards were reached and struck, as a table; nothing where none was counted."""
    if not guards:
        return ""
    rows = [("guard", "reached", "struck"), ("---", "---", "---")]
    rows += [
        (guard.name, f"{guard.reached:,}", "" if guard.struck is None else f"{guard.struck:,}") for guard in guards
    ]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write(results: list[Result], caption: str) -> None:
    """Put what was counted into the page; rows of faults that were not tried this time stay."""
    page = PAGE.read_text(encoding="utf-8")
    match = re.search(f"{BEGIN}(.*?){END}", page, re.DOTALL)
    if match is None:
        raise ValueError(f"{PAGE} has no place for the table")
    rows = {(result.fault, result.engine): result for result in [*_read(match[1]), *results]}
    ordered = sorted(rows.values(), key=lambda result: result.engine)
    whole = f"{BEGIN}\n{caption}\n\n{markdown(ordered)}\n{END}"
    PAGE.write_text(page.replace(match[0], whole), encoding="utf-8")


def _read(text: str) -> list[Result]:
    """Return the results of a table."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [Result(fault, engine, *map(int, counts)) for fault, engine, *counts in rows if counts[0].isdigit()]
