"""A lean Service Bus client for Spark tasks: many messages at little cost, bodies never decoded.

It works with Azure and with the broker, accepts the official SDK's credentials, and raises its
exceptions. It has no sessions, no deferral, no WebSockets and no retries.

    connection_string.py identity.py   a connection string, or a host name and who logs in
    address.py      a namespace: connection string, environment variable or credential
    token_cache.py tokens.py   logging in with an identity; tokens on a connection
    client.py       FastClient, which makes everything else
    connection_cache.py   clients that outlive a task
    sender.py receiver.py settlement.py management.py   what a client makes for an entity
    message.py errors.py                  what they return and raise
    columns.py rows.py compose.py typed.py   messages as rows of plain values, and back
    peek.py         reading an entity by sequence number

This file imports nothing: the first three are used where loading the SDK would take too long.
"""
