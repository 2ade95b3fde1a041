"""`python -m campaigns.reference`: write the generated parts of docs/cli.md and docs/http.md, as `make docs` does.

The part of a page above the marker is written by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.routing import Route

from ampmon_server.cli.parser import commands_of, parser
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.access import required_access
from ampmon_server.settings import Settings


DOCS = Path(__file__).parents[1] / "docs"
MARKER = "<!-- Generated from here on by campaigns/reference.py -->\n"
Operation = dict[str, Any]


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page(name))


def page(name: str) -> str:
    """A page's text: its handwritten part, then a fresh generated part."""
    by_hand, _, _ = (DOCS / name).read_text().partition(MARKER)
    generated = re.sub(r"\n{3,}", "\n\n", "\n".join(PAGES[name]()))
    return f"{by_hand}{MARKER}\n{generated.strip()}\n"


def commands() -> Iterator[str]:
    """Markdown for each `ampmon` command, from its parser."""
    typed = parser()
    (every,) = (each for each in typed._actions if isinstance(each, argparse._SubParsersAction))
    says = {each.dest: each.help or "" for each in every._choices_actions}
    for name, command in commands_of(typed).items():
        yield from _command(f"ampmon {name}", says[name], command, "##")


def _command(name: str, says: str, command: argparse.ArgumentParser, level: str) -> Iterator[str]:
    yield f"{level} `{name}`\n"
    yield f"{_sentence(command.description or says)}\n"
    rows, below = [], []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            says_below = {each.dest: each.help or "" for each in action._choices_actions}
            below = [(each, says_below[each], action.choices[each]) for each in action.choices]
        elif not isinstance(action, argparse._HelpAction):
            rows.append(f"| {_flag(action)} | {_cell(command, action)} |")
    yield from _table(("argument", "meaning"), rows)
    for each, words, parsed in below:
        yield from _command(f"{name} {each}", words, parsed, level + "#")


def _flag(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if not action.choices else "")
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    takes = f" {value}" if action.nargs != 0 and value else ""
    return ", ".join(f"`{each}{takes}`" for each in action.option_strings)


def _cell(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    says = command._get_formatter()._expand_help(action) if action.help else ""
    choices = [f"`{each}`" for each in action.choices or ()] if action.nargs != 0 else []
    return _escaped(says) + (f": {', '.join(choices)}" if choices else "")


def calls() -> Iterator[str]:
    """Markdown for each API call, from the OpenAPI document, then the page's addresses."""
    app = create_app(Settings(data_directory=Path("unused")))
    access = {
        (method, route.path): required_access(route)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths: dict[str, dict[str, Operation]] = app.openapi()["paths"]
    listed = set()
    for path, operations in paths.items():
        for method, operation in operations.items():
            listed.add((method.upper(), path))
            yield f"### `{method.upper()} {path}`\n"
            yield f"{operation['description'].replace('``', '`')}\n"
            yield f"Access: {_ACCESS[access[method.upper(), path]]}.\n"
            given = [_parameter(each) for each in _asked(operation)]
            yield "\n".join(given) + "\n" if given else ""
    yield "## Addresses of the page\n"
    others = [f"`{method} {path}`" for method, path in access if (method, path) not in listed]
    yield "Not in the OpenAPI document: " + ", ".join(others) + ".\n"


_ACCESS = {
    "ingest": "`ingest`",
    "read": "`read`",
    "page": "`read`",
    "admin": "`admin`",
    "token": "any token",
    "public": "open",
}


def _asked(operation: Operation) -> list[Operation]:
    asked = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields = body.get("schema", {}).get("properties", {})
    return asked + [
        {"name": name, "schema": schema, "body": True} for name, schema in fields.items()
    ]


def _parameter(given: Operation) -> str:
    schema = given["schema"]
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    words = " or ".join(dict.fromkeys(_kind(each) for each in kinds))
    default = schema.get("default")
    shown = f"; default `{default}`" if default else ""
    says = given.get("description", "") or schema.get("description", "")
    where = ", in the JSON body" if given.get("body") else ""
    return f"- `{given['name']}`: {words}{shown}{where}" + (f". {_escaped(says)}" if says else "")


def _kind(schema: Operation) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("format") or schema.get("type", "any"))


def _table(heads: tuple[str, ...], rows: Any) -> Iterator[str]:
    rows = list(rows)
    if rows:
        yield f"| {' | '.join(heads)} |"
        yield f"|{' --- |' * len(heads)}"
        yield from rows
        yield ""


def _sentence(words: str) -> str:
    text = " ".join(words.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _escaped(words: str) -> str:
    return re.sub(r"\s+", " ", words).replace("|", r"\|").replace("``", "`").replace("<", "&lt;")


PAGES: dict[str, Callable[[], Iterator[str]]] = {"cli.md": commands, "http.md": calls}


if __name__ == "__main__":
    main()
