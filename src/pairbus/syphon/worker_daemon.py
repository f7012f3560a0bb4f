"""Starts the Python workers of a local Spark.

Like Spark's own daemon, it forks each worker. It has already imported the code of a task, so no
worker spends a quarter of a second on that.
"""

from pyspark.daemon import manager

import pairbus.syphon.runner  # noqa: F401

if __name__ == "__main__":
    manager()
