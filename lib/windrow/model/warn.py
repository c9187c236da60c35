"""The limits beyond which Windrow warns about a ledger."""

# Guesses, tried on fleets with one fault each: an operator would want to act on anything above them.
SPLIT_SHARE = 0.5  # of all batches, those opened because a type was repeated
SLIVER_SHARE = 0.2  # of the closed batches, those with few messages for their stream
REJECTED_SHARE = 0.9  # of the messages of a source, those too old or too far ahead
MAX_TOO_OLD_RATIO = 0.01  # of all messages, those too old
MIN_COUNT = 100  # fewer batches or messages never trigger a warning
