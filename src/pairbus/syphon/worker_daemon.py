"""Starts the Python workers of a local Spark.

Spark's own daemon makes each worker by a fork. This one has imported the code of a task before, so
that no worker spends a quarter of a second on that.
"""

from pyspark.daemon import manager

import pairbus.syphon.runner  # noqa: F401

if __name__ == "__main__":
    manager()
