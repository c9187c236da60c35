"""The job that checks the quality of the ledger: `windrow quality`, with the job's parameters as its flags.

The job may be started before the first run has made the ledger; until then it says so and succeeds.
"""

import sys

from windrow.cli import main as windrow


def main(flags: list[str]) -> int:
    """Return the exit status; errors are printed to standard error."""
    return windrow(["quality", "--if-exists", *flags])


# A platform may treat any SystemExit as a failure, so a success ends without one.
if __name__ == "__main__" and (status := main(sys.argv[1:])):
    sys.exit(status)
