"""Events as CloudEvents, to which billing systems, SIEMs and data lakes can subscribe.

`relay` publishes the durable logs (usage, audit) to Redis Streams, `queue` the events that no log keeps (requests, the
gateway's own events); `logs` reads the logs, for the relay and for the admin API's streams.
"""
