"""A small model of the protocol, checked by Spin; independent of the code."""
