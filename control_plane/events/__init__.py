"""Events for others: what the gateway keeps books on, as CloudEvents that billing systems, SIEMs and data lakes
subscribe to.

`relay` publishes what is in the logs (usage, audit) to Redis Streams, `queue` what only passes by (requests, the
gateway's own events); `logs` reads the logs, for the relay and for the admin API's streams.
"""
