"""`pairbus package-for-spark`: writes an archive of pairbus for a Spark cluster."""

from __future__ import annotations

from pathlib import Path

from pairbus.cli.output import format_size
from pairbus.cli.shared_options import option
from pairbus.errors import OutputError, UsageError
from pairbus.spark.session import PACKAGE, write_archive


def package_for_spark(
    output: Path = option(
        "FILE.zip",
        "The archive to write (default: pairbus-spark.zip).",
        "--output",
        "-o",
        default=Path("pairbus-spark.zip"),
    ),
) -> None:
    """Write an archive of pairbus for Spark's --py-files: all but the local broker.

    The archive contains no compiled code. The Python of the cluster's workers also needs
    azure-servicebus, and azure-identity to log in without keys. A syphon with `--master spark://...`
    sends such an archive by itself; use this one for spark-submit, and for your own programs that
    use the data source.

    Exit codes: 0 success, 1 the archive cannot be written, 2 usage error, 130 interrupted.

    \b
    Examples:
      pairbus package-for-spark
      pairbus package-for-spark --output /tmp/pairbus.zip
    """
    if output.suffix != ".zip":
        raise UsageError(f"--output {output}: Spark needs a file name that ends in .zip")
    try:
        count = write_archive(output)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from None
    print(f"{output}: {count} modules, {format_size(output.stat().st_size)}. To run the syphon:")
    print(
        f"  spark-submit --master spark://HOST:7077 --py-files {output} "
        f"{PACKAGE / '__main__.py'} syphon"
    )
