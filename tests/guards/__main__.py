"""Take each guard away and say which test failed: `python -m tests.guards [--only TEXT] [--tests PATHS]`."""

from __future__ import annotations

import argparse
import sys

from tests.guards.guard import GUARDS


def main() -> int:
    """Try the guards; exit status 1 when a test did not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("--only", default="", help="guards with this in what they hold or in their module's path")
    parser.add_argument("--tests", default="", help="other tests than each guard's own")
    parser.add_argument("--engine", default="", help="embedded or spark: only what needs it")
    chosen = parser.parse_args()
    kept = 0
    for guard in GUARDS:
        engine = "spark" if guard.on_spark else "embedded"
        if chosen.only in f"{guard.holds} {guard.path}" and chosen.engine in engine:
            done = guard.tried_without(chosen.tests)
            kept += done.returncode != 1
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            sys.stdout.write(f"{done.returncode} {guard.holds} | {guard.path} | {' '.join(failed)[:300]}\n")
            sys.stdout.flush()
    return int(kept > 0)


if __name__ == "__main__":
    raise SystemExit(main())
