"""The tests. Where guards are counted, each process does so before it imports the library."""

import os

if "COUNT_GUARDS" in os.environ:
    import tests.guards.counting  # noqa: F401
