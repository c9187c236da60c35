"""The bridges: they copy messages from a broker to a depot.

MQTT: `mqtt_topics` maps topics to columns, `times` reads event times, `reader` combines both, and `mqtt_session` knows
which messages are in flight and which may be acknowledged. These are pure. `mqtt_connection` talks to the broker,
`mqtt` is the loop.

Kafka: `kafka_records` maps messages to columns, `kafka_partition` commits them with their offset, `kafka` is the loop.
"""
