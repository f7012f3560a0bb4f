"""The border to Azure's official SDK: what its errors mean, our errors that derive from its, the
backlog queues of the secondary namespace, and its messages as they go to the backlog. `sender/`
acts through it; nothing below knows the SDK.
"""
