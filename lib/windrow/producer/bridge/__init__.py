"""The MQTT bridge: copies messages from a broker to a depot, and acknowledges them once the depot has them.

`topics` maps topics to columns, `times` reads event times, `reader` combines both, and `session` knows which messages
are in flight and which may be acknowledged. These are pure. `connection` talks to the broker, `bridge` is the loop.
"""
