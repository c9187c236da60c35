"""Column mappings: Spark SQL expressions of the user from the columns of an input to those of a message.

Spark runs the text unchanged. For the embedded engine, sqlglot parses it and Windrow translates it to DuckDB's SQL by
the types of the input, because the same function can differ between the two systems (a cast of a decimal to an integer
truncates in one and rounds in the other). Anything that the translation does not know is refused before the input is
read, and so is what the engines write differently, such as the text of a float. So both engines give the same value, or
one of them an error, but never silently another value.
"""

from windrow.expressions.mapping import DEPOT, Mapping, recorded_text

__all__ = ["DEPOT", "Mapping", "recorded_text"]
