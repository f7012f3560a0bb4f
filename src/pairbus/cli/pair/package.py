"""`pairbus package-for-spark`: what a person types to get the syphon's code onto a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def package_for_spark(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = Path("pairbus-spark.zip"),
) -> None:
    """Write an archive of pairbus for Spark's --py-files: all but the local broker.

    It holds no compiled code. The Python of the cluster's workers needs azure-servicebus besides.
    A syphon with `--master spark://...` sends such an archive by itself; this one is for
    spark-submit, and for programs of your own that use the data source.

    \b
    Examples:
      pairbus package-for-spark
      pairbus package-for-spark --output /tmp/pairbus.zip
    """
    from pairbus.cli.pair.package_work import run

    run(output)
