"""All code that depends on Azure's official SDK: the meaning of its errors, our errors that derive
from them, the backlog queues of the secondary namespace, messages on their way to the backlog, and
every private part of it that pairbus uses (`private.py`).
"""
