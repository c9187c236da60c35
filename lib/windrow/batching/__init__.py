"""Batching: the rules, and the pure kernel that applies them. Loading the kernel's compiler takes half a second."""
