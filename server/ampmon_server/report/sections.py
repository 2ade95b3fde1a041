"""The sections of a report as HTML. Text from the server is escaped where it is inserted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from ampmon_server.client.answers import GOING_ON, RECOMMENDED
from ampmon_server.model.notices import NO_UPDATE, STOP
from ampmon_server.model.readouts import budget_words, readouts
from ampmon_server.model.terms import SEVERITIES
from ampmon_server.model.words import (
    NONE,
    count,
    plural,
    scale_words,
    steps,
    within,
)
from ampmon_server.queries.merged_skips import NAMED
from ampmon_server.report.data import SCALERS_MAX, ReportChart, ReportData


CULPRITS = 3
"""At most this many culprits of a skip are named."""
OPEN_MAX = 20
"""At most this many skips are shown at first: on a phone, each is as tall as a paragraph."""


def sections(report: ReportData) -> str:
    """Return everything between the head of the file and its scripts."""
    parts = [
        _head(report),
        _notices(report),
        _findings(report),
        _numbers(report.run),
        _left_out(report.scalers),
        *map(_chart, report.charts),
        _skips(report),
        _configuration(report.run),
    ]
    return "\n".join(parts)


def _head(report: ReportData) -> str:
    run, diagnosis = report.run, report.diagnosis
    about = " · ".join(
        [run["project"], run["owner"], run["status"], f"started {_when(run['started'])}"]
    )
    return (
        f"<header><h1>{escape(run['name'])}</h1><p class='about'>{escape(about)}</p></header>"
        f"<p class='state'>{_answer(run['updates'], diagnosis)}</p>"
        f"<p class='caption'>{escape(diagnosis['training']['sentence'])}</p>"
        f"<p class='caption'>Run {escape(run['run_id'])}</p>"
    )


def _answer(updates: int, diagnosis: dict[str, Any]) -> str:
    severity = diagnosis["severity"]
    if severity is None and not updates:
        return NO_UPDATE
    return f"{_verdict(severity)}<span>{escape(diagnosis['verdict'])}</span>"


def _verdict(severity: str | None) -> str:
    word = severity or "healthy"
    return f"<span class='badge verdict' data-severity='{word}'><span>{SEVERITIES[word]}</span> {word}</span>"


def _notices(report: ReportData) -> str:
    notices = "".join(f"<li>{escape(each)}</li>" for each in report.diagnosis["notices"])
    return f"<ul class='notices'>{notices}</ul>" if notices else ""


def _findings(report: ReportData) -> str:
    findings = "".join(_finding(each, report) for each in report.diagnosis["findings"])
    return f"<section class='findings'>{findings}</section>"


def _finding(finding: dict[str, Any], report: ReportData) -> str:
    first, last = finding["first_step"], finding["last_step"]
    places = ["" if first is None or last is None else steps(first, last)]
    if finding["scaler"] and len(report.scalers) > 1:
        places.append(f"scaler {finding['scaler']}")
    place = " · ".join(filter(None, places))
    where = f"<p class='caption'>{escape(place)}</p>" if place else ""
    going = report.run["status"] in GOING_ON
    stop = f"<p class='stop'>{STOP}</p>" if finding["stop"] and going else ""
    fix = _code(finding["fix"], finding["second"] or RECOMMENDED) if finding["fix"] else ""
    return (
        f"<div class='finding'><p class='finding-title'>{_verdict(finding['severity'])}"
        f"<span>{escape(finding['title'])}</span></p>"
        f"<p>{_coded(finding['explanation'])}</p>{stop}{where}{fix}</div>"
    )


def _code(code: str, standing: str) -> str:
    return f"<p class='caption'>{escape(standing)}</p><pre><code>{escape(code)}</code></pre>"


def _coded(words: str) -> str:
    """Escape text, and show what is in backticks as code."""
    parts = map(escape, words.split("`"))
    return "".join(
        f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)
    )


def _numbers(run: dict[str, Any]) -> str:
    words = readouts(run)
    rows = [
        ("Newest scale", _scale(run, "scale"), ""),
        ("Skipped", words["skipped"].value, words["skipped"].more or NONE),
        (
            "Subnormal",
            within(run["subnormal_fraction"], run["subnormal_fraction_error"]),
            "of gradient values",
        ),
        ("Zero", within(run["zero_fraction"], run["zero_fraction_error"]), "of gradient values"),
        ("Headroom", words["headroom"].value, "at most"),
        ("Records", count(run["records"]), f"{count(run['lost_records'])} lost"),
        ("Gradients sampled", plural(run["sampled_updates"], "step"), ""),
        ("Overhead", within(run["overhead"]), f"of training time{_budget(run)}"),
        ("Processes", words["ranks"].value, words["ranks"].more),
        ("Parameters", count(run["parameters"]), ""),
    ]
    listed = (
        f"<div><dt>{label}</dt><dd>{value}</dd><dd class='more'>{more}</dd></div>"
        for label, value, more in rows
    )
    return f"<dl class='numbers'>{''.join(listed)}</dl>"


def _budget(run: dict[str, Any]) -> str:
    return f", {budget_words(run)}" if run["over_budget"] and run["budget"] is not None else ""


def _left_out(scalers: list[str]) -> str:
    more = scalers[SCALERS_MAX:]
    if not more:
        return ""
    named = ", ".join(more[:NAMED]) + (", …" if len(more) > NAMED else "")
    words = f"Charts of {plural(len(more), 'more scaler')} are left out: {named}"
    return f"<p class='caption'>{escape(words)}</p>"


def _chart(chart: ReportChart) -> str:
    figure = chart.figure
    meta = figure["layout"]["meta"]
    named = meta["title"] + (f" · {chart.scaler}" if chart.scaler else "")
    words = [f"<p class='caption'>{escape(meta['caption'])}</p>"] if meta.get("caption") else []
    if meta.get("empty"):
        words.append(f"<p class='empty'>{escape(meta['empty'])}</p>")
    else:
        height = int(figure["layout"]["height"])
        label = escape(f"{named}. {meta.get('caption', '')}")
        words.append(
            f"<div class='plot' role='img' aria-label='{label}' style='height:{height}px'></div>"
        )
    if meta.get("sentence"):
        words.append(f"<p class='sentence'>{escape(meta['sentence'])}</p>")
    if meta.get("standing"):
        words.append(f"<p class='caption'>{escape(meta['standing'])}</p>")
    terms = "".join(
        f"<dt>{escape(word)}</dt><dd>{escape(definition)}</dd>"
        for word, definition in meta["definitions"].items()
    )
    words.append(f"<details><summary>Definitions</summary><dl>{terms}</dl></details>")
    title = f"<h2>{escape(named)}</h2>"
    return f"<section class='panel' data-figure='{chart.name}'>{title}{''.join(words)}</section>"


def _skips(report: ReportData) -> str:
    if not report.skips:
        return "<section class='ledger'><h2>Skipped steps</h2><p class='empty'>None.</p></section>"
    newest, earlier = report.skips[:OPEN_MAX], report.skips[OPEN_MAX:]
    listed = {(each["scaler"], each["step"]) for each in report.skips}
    more = int(report.run["skipped"]) - len(listed)
    parts = [_table(newest, report)]
    if earlier:
        summary = f"<summary>{count(len(earlier))} earlier</summary>"
        parts.append(f"<details class='rows'>{summary}{_table(earlier, report)}</details>")
    if more > 0:
        parts.append(f"<p class='caption'>{plural(more, 'earlier skipped step')} not listed.</p>")
    return f"<section class='ledger'><h2>Skipped steps</h2>{''.join(parts)}</section>"


def _table(skips: Sequence[dict[str, Any]], report: ReportData) -> str:
    heads = "".join(
        f"<th scope='col'>{each}</th>"
        for each in ("Step", "Time", "Optimizer", "Cause", "First to overflow", "Scale")
    )
    rows = "".join(_skip(each, report) for each in skips)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _skip(skip: dict[str, Any], report: ReportData) -> str:
    names = [each["parameter"] for each in skip["culprits"]]
    rest = skip["culprit_parameters"] - len(names[:CULPRITS])
    culprits = ", ".join(f"<code>{escape(name)}</code>" for name in names[:CULPRITS])
    culprits += f" and {count(rest)} more" if rest > 0 else ""
    whose = f"{skip['scaler']}: " if len(report.scalers) > 1 else ""
    optimizer = whose + ", ".join(filter(None, [skip["optimizer"], skip["ranks_words"]]))
    cells = (
        ("Step", count(skip["step"])),
        ("Time", _when(skip["time"])),
        ("Optimizer", escape(optimizer)),
        ("Cause", f"<span data-cause='{escape(skip['cause'])}'>{escape(skip['cause'])}</span>"),
        ("First to overflow", f"<span>{culprits or NONE}</span>"),
        ("Scale", f"{_scale(skip, 'scale')} → {_scale(skip, 'scale_after')}"),
    )
    return f"<tr>{''.join(f'<td data-name={json.dumps(name)}>{cell}</td>' for name, cell in cells)}</tr>"


def _scale(record: dict[str, Any], name: str) -> str:
    return scale_words(record[name], record[f"{name}_kind"])


def _configuration(run: dict[str, Any]) -> str:
    identity = dict(run["identity"])
    config = _json(identity.pop("config", {}))
    # A run of many ranks has as many processes, which would fill hundreds of pages.
    processes = plural(len(identity["attempts"]), "process", "processes")
    return (
        f"<section class='ledger'><h2>Configuration</h2>{config}</section>"
        "<section class='ledger'><h2>Reporting processes</h2>"
        f"<details class='rows'><summary>{processes}</summary>{_json(identity)}</details></section>"
    )


def _json(what: object) -> str:
    text = json.dumps(what, indent=2, ensure_ascii=False)
    return f"<pre><code>{escape(text)}</code></pre>"


def _when(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
