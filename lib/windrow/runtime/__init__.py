"""A microbatch: prime, plan, process, commit; the loop around it; what keeps a ledger in order."""
