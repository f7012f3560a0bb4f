"""The result of a run: as text, as JSON, and as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from pairbus.demo.account import Verdict
from pairbus.json_style import camel_case_keys, utc_text
from pairbus.verify.journal import Fact, read_journals
from pairbus.verify.nemesis import PlannedFault
from pairbus.verify.run import RunResult

_WIDTH, _HEIGHT = 900, 160
_TEXTS: Final = {
    "attempts": "messages that the senders tried to send",
    "acknowledged": "sends that returned",
    "failed": "sends that failed for certain",
    "unknown": "sends without a clear answer",
    "received": "messages that were received",
    "lost": "acknowledged, but never received, and found nowhere",
    "unexpected": "received, but never sent",
    "damaged": "received with another body or other properties",
    "duplicated": "received more than once",
    "recovered": "received, although the send gave no clear answer",
    "dead_lettered": "in a dead-letter queue at the end",
    "left": "in the backlog, or in their queue, at the end",
    "out_of_order": "received after a later message of the session",
    "late": "received more than 5s after the send returned",
}


def counts(verdict: Verdict) -> dict[str, int]:
    values = {name: getattr(verdict, name) for name in _TEXTS}
    return {name: value if isinstance(value, int) else len(value) for name, value in values.items()}


def _title(name: str) -> str:
    return name.replace("dead_", "dead-").replace("_", " ")


def to_text(result: RunResult) -> str:
    verdict = result.verdict
    lines = [
        f"{value:>9,}  {_title(name):<14} {_TEXTS[name]}" for name, value in counts(verdict).items()
    ]
    lines.append(
        f"{verdict.longest_gap_seconds:>8.1f}s  longest gap    without a send that returned"
    )
    if result.note:
        lines.append(f"The drain ended early: {result.note}.")
    for name in ("lost", "unexpected", "damaged"):
        ids = getattr(verdict, name)
        if ids:
            more = f" and {len(ids) - 20:,} more" if len(ids) > 20 else ""
            lines.append(f"{name}: {', '.join(ids[:20])}{more}")
    lines.append(sentence(verdict))
    return "\n".join(lines)


def sentence(verdict: Verdict) -> str:
    if verdict.is_valid:
        return f"VALID: all {verdict.acknowledged:,} acknowledged messages are accounted for."
    return (
        f"NOT VALID: {len(verdict.lost)} lost, {len(verdict.unexpected)} unexpected, "
        f"{len(verdict.damaged)} damaged."
    )


def to_json(result: RunResult, **settings: Any) -> dict[str, Any]:
    return {
        **settings,
        "startedAt": utc_text(result.started_at),
        "valid": result.verdict.is_valid,
        **camel_case_keys(counts(result.verdict)),
        "longestGapSeconds": round(result.verdict.longest_gap_seconds, 3),
        "lostIds": list(result.verdict.lost[:20]),
        "unexpectedIds": list(result.verdict.unexpected[:20]),
        "damagedIds": list(result.verdict.damaged[:20]),
        "note": result.note,
        "faultsByKind": faults_by_kind(result.faults),
        "faults": [
            {
                "kind": each.kind,
                "target": each.target,
                "begins": round(each.begins, 3),
                "seconds": round(each.seconds, 3),
                **each.settings,
            }
            for each in result.faults
        ],
    }


def faults_by_kind(faults: Iterable[PlannedFault]) -> dict[str, int]:
    """Kills, stops and the like by their targets, too."""
    names = [f"{each.kind} {each.target}".rstrip(" 0123456789") for each in faults]
    return dict(sorted(Counter(names).items()))


# -- the page ----------------------------------------------------------------------------------


def to_html(result: RunResult, folder: Path, *, title: str) -> str:
    rates: dict[Fact, Counter[int]] = {
        fact: Counter() for fact in (Fact.ACKNOWLEDGED, Fact.UNKNOWN, Fact.FAILED, Fact.RECEIVED)
    }
    for entry in read_journals(folder):
        if entry.fact in rates:
            rates[entry.fact][int(entry.at - result.started_at)] += 1
    seconds = 1 + max([0, *(second for rate in rates.values() for second in rate)])
    failures = rates[Fact.UNKNOWN] + rates[Fact.FAILED]
    charts = [
        _chart("sends that returned, a second", _line(rates[Fact.ACKNOWLEDGED], seconds), result),
        _chart("sends that raised, a second", _line(failures, seconds), result),
        _chart("messages received, a second", _line(rates[Fact.RECEIVED], seconds), result),
        _chart("messages in the backlog", [(s.at, s.backlog) for s in result.samples], result),
    ]
    rows = "".join(
        f"<tr><td>{value:,}</td><th>{_title(name)}</th><td>{_TEXTS[name]}</td></tr>"
        for name, value in counts(result.verdict).items()
    )
    faults = "".join(f"<li>{each.begins:.1f}s: {escape(str(each))}</li>" for each in result.faults)
    began = datetime.fromtimestamp(result.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse }} th {{ text-align: left }} td, th {{ padding: .1rem .8rem }}
td:first-child {{ text-align: right; font-variant-numeric: tabular-nums }}
svg {{ width: 100%; height: auto; background: #f6f6f6 }} .fault {{ fill: #f3c6c0 }}
path {{ fill: none; stroke: #2358a5; stroke-width: 2 }}
</style></head><body>
<h1>{escape(title)}</h1><p>{began}. <strong>{escape(sentence(result.verdict))}</strong>
{escape(result.note)}</p><table>{rows}</table>{"".join(charts)}
{f"<h2>Faults</h2><ol>{faults}</ol>" if faults else ""}
</body></html>
"""


Point = tuple[float, float | None]
"""A time and a value; None: the value is not known, so the curve has a gap."""


def _line(rate: Counter[int], seconds: int) -> list[Point]:
    return [(float(second), float(rate[second])) for second in range(seconds)]


def _chart(title: str, points: Sequence[Point], result: RunResult) -> str:
    """A curve over time. The times of faults are shaded."""
    width = max([1.0, *(at for at, _ in points), *(each.at for each in result.samples)])
    top = max([1.0, *(value for _, value in points if value is not None)])

    def x(at: float) -> float:
        return round(at / width * _WIDTH, 1)

    shades = "".join(
        f'<rect class="fault" x="{x(each.begins)}" y="0" width="{x(each.seconds)}" '
        f'height="{_HEIGHT}"><title>{escape(str(each))}</title></rect>'
        for each in result.faults
    )
    path = " ".join(
        _steps((x(at), None if value is None else _y(value, top)) for at, value in points)
    )
    return (
        f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}, at most {top:,.0f}">{shades}<path d="{path}"/></svg>'
        f"<p>at most {top:,.0f}; {width:,.0f}s</p>"
    )


def _y(value: float, top: float) -> float:
    return _HEIGHT - value / top * (_HEIGHT - 10)


def _steps(points: Iterable[Point]) -> Iterable[str]:
    """The commands of an SVG path."""
    is_drawing = False
    for across, down in points:
        if down is not None:
            yield f"{'L' if is_drawing else 'M'}{across:.1f} {down:.1f}"
        is_drawing = down is not None
