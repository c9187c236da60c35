"""Ledgers over raw depots: what they have beside messages, the depot formatted anew, and the comparison of both."""
