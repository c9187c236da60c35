"""Take each guard away and say which test failed: `python -m tests.guards [--only NAME] [--tests PATHS]`."""

from __future__ import annotations

import argparse
import sys

from tests.guards.guard import GUARDS, PAGE, written


def main() -> int:
    """Try the guards; exit status 1 when a test did not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("--only", default="", help="the guard of this name, or those with this in what they hold")
    parser.add_argument("--tests", default="", help="other tests than each guard's own")
    parser.add_argument("--engine", default="", help="embedded or spark: only what needs it")
    parser.add_argument("--write", action="store_true", help="only write the table of docs/reference/guards.md")
    chosen = parser.parse_args()
    if chosen.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    kept = 0
    named = [guard for guard in GUARDS if chosen.only == guard.name]
    for guard in named or [guard for guard in GUARDS if chosen.only in f"{guard.holds} {guard.path}"]:
        if chosen.engine in ("spark" if guard.on_spark else "embedded"):
            completed = guard.tried_without(chosen.tests)
            kept += completed.returncode != 1
            failed = [line for line in completed.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            sys.stdout.write(f"{completed.returncode} {guard.name} | {guard.path} | {' '.join(failed)[:300]}\n")
            sys.stdout.flush()
    return int(kept > 0)


if __name__ == "__main__":
    raise SystemExit(main())
