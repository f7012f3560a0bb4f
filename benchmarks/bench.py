"""Runs all benchmarks, keeps their results as JSON, and writes docs/benchmarks.md from those.

python benchmarks/bench.py                      about half an hour on an idle machine
python benchmarks/bench.py --quick              a minute or two; writes nothing that is kept
python benchmarks/bench.py --only distance      one of them, and the page
python benchmarks/bench.py --page               only the page, from the results that are kept
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import broker
import distance
import pairing
import report
import syphon
import topics

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
PAGE = "benchmarks.md"
INTERRUPTED = 130

# With the rounds that fit into half an hour together.
PROGRAMS: dict[str, tuple[report.Shape, tuple[str, ...]]] = {
    "broker": (report.tables, ("--rounds", "2")),
    "topics": (topics.tables, ("--rounds", "1")),
    "pairing": (pairing.tables, ("--rounds", "2", "--seconds", "2")),
    "syphon": (syphon.tables, ("--rounds", "2")),
    "distance": (distance.tables, ("--rounds", "3")),
}
assert {module.__name__ for module in (broker, distance, pairing, syphon, topics)} == set(PROGRAMS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only show that everything works")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="may be repeated")
    parser.add_argument("--folder", default="/var/tmp", help="a folder on the disk to be measured")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        results, docs = RESULTS, DOCS
        if options.quick:
            results = docs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = [] if options.page else options.only or list(PROGRAMS)
        failed = [name for name in names if not _run(name, results, options)]
        write_page(results, docs)
        print(f"wrote {docs / PAGE}" + (", and deleted it" if options.quick else ""))
    return 1 if failed else 0


def _run(name: str, results: Path, options: argparse.Namespace) -> bool:
    begun = time.monotonic()
    rounds = ["--quick"] if options.quick else PROGRAMS[name][1]
    command = [sys.executable, str(HERE / f"{name}.py"), "--save", str(results / f"{name}.json")]
    # Ctrl-C reaches that program as well, which ends what it has started.
    code = subprocess.run([*command, *rounds, "--folder", options.folder], check=False).returncode
    if code == INTERRUPTED:
        raise SystemExit(code)
    print(f"{name}: {time.monotonic() - begun:.0f} s" + (f", failed with {code}" if code else ""))
    return code == 0


# --- the page -------------------------------------------------------------------------------------


def write_page(results: Path, docs: Path) -> None:
    """Put the tables and plots of the results into the text of page.md."""
    text = (HERE / "page.md").read_text()
    for name, (shape, _) in PROGRAMS.items():
        file = results / f"{name}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        tables = [] if found is None else report.markdown_tables(found, shape)
        for number, table in enumerate(tables):
            text = text.replace(f"{{{{{name}:{number}}}}}", table)
        text = text.replace(f"{{{{{name}}}}}", "\n\n".join(tables) or "Not measured yet.")
        for number in range(9):
            text = text.replace(f"{{{{{name}:{number}}}}}", "Not measured yet.")
        if name == "distance" and found is not None:
            plot(found, docs)
    text = re.sub(
        r"!\[[^]]*\]\(([^)]*)\)\n\n",
        lambda image: image.group() if (docs / image.group(1)).exists() else "",
        text,
    )
    (docs / PAGE).write_text(text)


def plot(found: dict[str, Any], docs: Path) -> None:
    if found["syphon"]:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in found["syphon"]:
            lines.setdefault(distance.WAYS[row["way"]], []).append((row["ms"], row["rate"]))
        title = "Messages a second by round trip, 500 bytes each"
        _draw(docs / "benchmarks-distance.svg", title, "round trip, ms", lines)
    if found["sizes"]:
        lines = {
            title: [(row["bytes"] / 1000, row[key]["rate"]) for row in found["sizes"]]
            for key, title in (("syphon", "syphon"), ("copy", "plain copy, two syncs"))
        }
        title = "MB a second by message size"
        _draw(docs / "benchmarks-size.svg", title, "message, KB", lines, is_log_x=True)


def _draw(
    file: Path,
    title: str,
    unit: str,
    lines: dict[str, list[tuple[float, float]]],
    *,
    is_log_x: bool = False,
) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pairbus"  # the same data make the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.set_yscale("log")
    if is_log_x:
        axes.set_xscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
