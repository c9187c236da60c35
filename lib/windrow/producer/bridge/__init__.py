"""The bridges: they copy messages from a broker to a depot.

MQTT: `topics` maps topics to columns, `times` reads event times, `reader` combines both, and `session` knows which
messages are in flight and which may be acknowledged. These are pure. `connection` talks to the broker, `bridge` is the
loop.

Kafka: `records` maps messages to columns, `partition` commits them with their offset, `kafka` is the loop.
"""
