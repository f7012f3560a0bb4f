"""Send the dead-lettered messages of `orders` again that failed because the price service was down.

The dead-letter queue stays as it is. The checkpoint records which messages were read, so a second
run reads only new ones.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pairbus.spark import register

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
register(spark)

dead_letters = (
    spark.readStream.format("servicebus")
    .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
    .option("queue", "orders")
    .option("subQueue", "deadLetter")
    .load()
)
why = F.array(F.lit("DeadLetterReason"), F.lit("DeadLetterErrorDescription"))
query = (
    dead_letters.filter(F.col("deadLetterReason") == "PriceServiceDown")
    .withColumn(
        "applicationProperties",
        F.map_filter("applicationProperties", lambda name, _: ~F.array_contains(why, name)),
    )
    .writeStream.format("servicebus")
    .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
    .option("queue", "orders")
    .option("checkpointLocation", f"{folder}/checkpoints/replay")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
