"""Run microbatches (prime, plan, process, commit), the loop around them, and table maintenance."""
