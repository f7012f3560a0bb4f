"""Copy each message of the queue `orders` to Parquet files, once, and leave the queue as it is."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pairbus.spark import register

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
register(spark)

orders = (
    spark.readStream.format("servicebus")
    .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
    .option("queue", "orders")
    .option("maxMessagesPerTrigger", 50_000)
    .load()
)
query = (
    orders.withColumn("day", F.to_date("enqueuedTime"))
    .writeStream.format("parquet")
    .partitionBy("day")
    .option("path", f"{folder}/orders")
    .option("checkpointLocation", f"{folder}/checkpoints/lake")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
