"""The job that compacts and cleans up depot and ledger: `windrow maintain`, with the job's parameters as its flags."""

import sys

from windrow.cli import main as windrow


def main(flags: list[str]) -> int:
    """Return the exit status; what went wrong stands on standard error."""
    return windrow(["maintain", *flags])


# A platform may take any SystemExit for a failure, so a success just ends.
if __name__ == "__main__" and (status := main(sys.argv[1:])):
    sys.exit(status)
