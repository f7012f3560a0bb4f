"""Move the messages of two queues to the topic `events`, each at least once."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pairbus.spark import register

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
register(spark)


def received_from(queue: str) -> DataFrame:
    return (
        spark.readStream.format("servicebus")
        .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
        .option("queue", queue)
        .option("receiveMode", "peekLock")
        .load()
    )


query = (
    received_from("orders")
    .unionByName(received_from("returns"))
    .withColumn("subject", F.coalesce("subject", "entity"))
    .writeStream.format("servicebus")
    .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
    .option("topic", "events")
    .option("checkpointLocation", f"{folder}/checkpoints/fan-in")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
