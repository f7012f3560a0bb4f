"""What `pairbus package-for-spark` does, and the use of the archive."""

from __future__ import annotations

from pathlib import Path

from pairbus.cli.pair.report_work import size_text
from pairbus.errors import UsageError
from pairbus.spark.archive import PACKAGE, write_archive


def run(output: Path) -> None:
    if output.suffix != ".zip":
        raise UsageError(f"--output {output}: Spark takes archives whose name ends with .zip")
    try:
        count = write_archive(output)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror or error}") from None
    print(f"{output}: {count} modules, {size_text(output.stat().st_size)}. To run the syphon:")
    print(
        f"  spark-submit --master spark://HOST:7077 --py-files {output} "
        f"{PACKAGE / '__main__.py'} syphon"
    )
