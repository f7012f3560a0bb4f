"""What an operator sees of a pair of namespaces: each module makes one kind of sight of events.

`log` and `otel` are on by themselves, the latter where OpenTelemetry's API is installed;
`prometheus` has an observer that an application asks for. None of them knows who decides or sends.
"""
