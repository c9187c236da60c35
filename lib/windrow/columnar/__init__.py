"""Arrow and numpy helpers that know nothing about batching. Pure."""
