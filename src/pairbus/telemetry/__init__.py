"""Makes the events of a pair visible to an operator: one module for each kind of output.

`log` is always on, and so is `otel` where OpenTelemetry's API is installed. An application asks
for `prometheus` by giving its observer to a pairing. No module here decides or sends anything.
"""
