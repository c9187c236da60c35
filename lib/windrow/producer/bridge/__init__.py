"""The bridge: messages of an MQTT broker into a depot, acknowledged to the broker when the depot has them.

`topics` says what a topic means, `times` when a message happened, `reader` puts both together; `session` knows what is
on its way and what may be acknowledged. All of these are pure. `connection` speaks to the broker, `bridge` is the loop.
"""
