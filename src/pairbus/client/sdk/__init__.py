"""The one border to Azure's official SDK: what its errors mean, our errors that derive from them,
the backlog queues of the secondary namespace, messages on their way to the backlog, and every
private part of it that pairbus uses (`private.py`).
"""
