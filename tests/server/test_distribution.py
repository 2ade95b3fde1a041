"""The rules that let a cluster distribute the schema by run, checked on the schema and on executed statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import msgspec
import psycopg
import pytest
from sqlalchemy import UniqueConstraint, make_url
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.alerting.messages import DeliveryOutcome
from ampmon_server.alerting.targets import Target
from ampmon_server.background import upkeep
from ampmon_server.charts import FIGURES
from ampmon_server.cli import main
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Edit, Judgement, Mute, Store, Token, Wanted
from ampmon_server.store.schema.tables import metadata
from batches import START, Trainer, now
from postgres import Postgres
from receiver import alerts_to
from statements import OF_RUNS, Planner, Statement, logged


OVER_RUNS = {
    "store.alerts.alerts.firing": "counts, of all runs, what fires",
    "store.alerts.alerts.open_ones": "lists what fires in all runs",
    "store.alerts.alerts.subjects": "names the runs that are muted",
    "store.alerts.outbox.listed": "lists the messages of all runs",
    "store.alerts.alerts.runs_to_judge": "runs that fell silent or have a due alert, by time of change",
    "store.alerts.alerts.runs_with_unsent_alerts": "runs with alerts whose mute has ended",
    "store.runs.listing.read_page": "the list of runs",
    "store.runs.listing._summaries": "the same",
    "store.runs.listing.read_groups": "what the list can be filtered by",
    "store.updates.updates._scalers_of_runs": "the scales that the list draws",
    "store.updates.updates._pages_of_runs": "the same",
    "store.runs.runs.read_streams": "the streams of the runs that the list shows",
    "store.runs.runs.read_versions": "the versions that a page gets when it begins to listen",
    "store.forwarding.behind": "the runs that a destination lacks something of, by time of change",
    "store.streams.state.changed_since": "what other server processes did: the cursor that is polled",
    "store.admin.prune.due": "runs that are old or deleted",
    "store.admin.verify.runs": "the runs to verify",
    "store.admin.verify._of_no_run": "rows of no run, which no key finds",
}
"""Every function with a statement over several runs. None of them serves ingest or requests for one run."""

PLAIN = UUID(int=8)

NO_CLUSTER_HAS = {
    "a key that does not begin with the run": """
        SELECT t.relname, i.relname FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid
            JOIN pg_class i ON i.oid = x.indexrelid
            JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0]
        WHERE t.relnamespace = 'public'::regnamespace AND (x.indisunique OR x.indisexclusion)
            AND a.attname <> 'run_id' AND EXISTS (SELECT 1 FROM pg_attribute r
                WHERE r.attrelid = t.oid AND r.attname = 'run_id' AND NOT r.attisdropped)""",
    "a foreign key that may lead to another run": """
        SELECT conrelid::regclass::text, conname FROM pg_constraint f
        WHERE contype = 'f' AND connamespace = 'public'::regnamespace AND EXISTS (SELECT 1 FROM pg_attribute r
                WHERE r.attrelid = f.confrelid AND r.attname = 'run_id' AND NOT r.attisdropped)
            AND NOT EXISTS (SELECT 1 FROM unnest(f.conkey, f.confkey) AS pair(own, other)
                JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = pair.own
                JOIN pg_attribute b ON b.attrelid = f.confrelid AND b.attnum = pair.other
                WHERE a.attname = 'run_id' AND b.attname = 'run_id')""",
    "a sequence": """
        SELECT relname, relname FROM pg_class
        WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace""",
    "a trigger": """
        SELECT tgrelid::regclass::text, tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT tgisinternal AND c.relnamespace = 'public'::regnamespace""",
    "a run with no key": """
        SELECT c.relname, c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'run_id'
            AND NOT EXISTS (SELECT 1 FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary)""",
}


def found(connection: psycopg.Connection[Any]) -> dict[str, list[tuple[str, str]]]:
    """The breaches of the cluster's rules in a database."""
    rows = {what: connection.execute(query).fetchall() for what, query in NO_CLUSTER_HAS.items()}
    return {what: listed for what, listed in rows.items() if listed}


@pytest.fixture
def line(postgres: Postgres, migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to an empty store, whose changes are rolled back."""
    with postgres.connect(migrated) as connection:
        connection.autocommit = False
        yield connection
        connection.rollback()


def test_every_table_of_runs_is_keyed_by_the_run_first() -> None:
    """In every table of runs, keys and unique indexes begin with the run, and foreign keys are the run."""
    for table in (metadata.tables[name] for name in OF_RUNS):
        unique = [index.columns for index in table.indexes if index.unique]
        unique += [each.columns for each in table.constraints if isinstance(each, UniqueConstraint)]
        assert {next(iter(columns)).name for columns in (table.primary_key, *unique)} == {"run_id"}
        for key in table.foreign_keys:
            assert (key.parent.name, key.column.name) == ("run_id", "run_id")
        assert table.autoincrement_column is None
        assert not any(column.identity for column in table.columns)
    assert {name for name in metadata.tables if name not in OF_RUNS} == {
        "destinations",
        "messages",
        "mutes",
        "revoked_sessions",
        "tokens",
    }


def test_the_migrated_schema_has_nothing_that_a_cluster_cannot_have(line: Any) -> None:
    """A migrated PostgreSQL schema breaks no rule of the cluster."""
    assert found(line) == {}


@pytest.mark.parametrize(
    ("what", "statement"),
    [
        (
            "a key that does not begin with the run",
            "CREATE UNIQUE INDEX a ON attempts (attempt_id)",
        ),
        ("a key that does not begin with the run", "CREATE UNIQUE INDEX a ON skips (step, run_id)"),
        ("a sequence", "ALTER TABLE events ADD COLUMN number BIGSERIAL"),
        (
            "a foreign key that may lead to another run",
            "CREATE TABLE notes (note bytea PRIMARY KEY REFERENCES runs (run_id))",
        ),
        ("a run with no key", "CREATE TABLE notes (run_id bytea, note text)"),
        (
            "a trigger",
            "CREATE TRIGGER a BEFORE UPDATE ON runs FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        ),
    ],
)
def test_what_breaks_the_rules_is_found(line: Any, what: str, statement: str) -> None:
    """Each rule finds a schema change that breaks it."""
    line.execute(statement)

    assert set(found(line)) == {what}


class Asking:
    """A client that requests everything about a run, with the next page of each list."""

    QUERIES = (
        "",
        "?stream=1",
        "?stream=1&step=100",
        "?side=after&step=3",
        "?limit=2",
        "?name=loss&start=1&limit=20",
        *(f"?what={what}" for what in ("skips", "events", "samples", "scalars")),
    )
    VIEWS = (
        "?x=step&width=1000",
        "?x=step&width=20&stop=211",
        f"?x=time&width=40&start={START + 700_000}&stop={START + 9_000_000}",
        "?x=user&width=40&stream=1",
    )

    def __init__(self, client: TestClient, listed: dict[str, Any]) -> None:
        self._client = client
        self._known = {
            path: {
                each["name"] for each in of["get"].get("parameters", ()) if each["in"] == "query"
            }
            for path, of in listed.items()
            if "get" in of and "/runs/{run_id}" in path
        }

    def everything(self, run_id: UUID, views: Sequence[str] = VIEWS) -> None:
        """Request each route with each query it supports, and every figure in each view.

        Simulations, which are slow, run once.
        """
        for path, known in self._known.items():
            queries = views if "{name}" in path else self.QUERIES
            for name in FIGURES if "{name}" in path else [""]:
                once = "simulate" in f"{path} {name}"
                for query in queries[:1] if once else queries:
                    if known.issuperset(parse_qs(query[1:])):
                        self._ask(path.format(run_id=run_id, name=name), query)

    def _ask(self, path: str, query: str) -> None:
        answer = self._client.get(f"{path}{query}")
        assert answer.status_code < 500, answer.text
        if answer.headers["Content-Type"] != "application/json":
            return
        following = answer.json().get("next")
        if isinstance(following, str):
            joined = "&" if query else "?"
            assert self._client.get(f"{path}{query}{joined}cursor={following}").status_code == 200


def ingested(store: Store) -> list[UUID]:
    """Ingest plain, sharded, resumed and two-scaler runs. Some batches repeat or come late."""
    plain = Trainer(PLAIN)
    first, other = Trainer(world_size=2), Trainer(rank=1, world_size=2)
    other.run_id = first.run_id
    again = Trainer(first.run_id, resume_step=150, world_size=2)
    start = [first.event("init"), *first.updates(300, skipped=[3, 250], sampled=range(0, 300, 30))]
    late = [*again.updates(200, skipped=[0, 17], sampled=range(0, 200, 50)), again.event("finish")]
    values = [
        msgspec.structs.replace(again.scalars({"loss": float(n)}), ordinal=150 * n)
        for n in range(3)
    ]
    sharded = [
        Trainer(UUID(int=7), rank=rank, scaler=scaler, layout="sharded", world_size=2)
        for rank, scaler in ((0, "one"), (1, "one"), (0, "other"))
    ]
    batches = [
        first.batch(start[:200]),
        other.batch(other.updates(100, skipped=[5], sampled=[0, 50])),
        again.batch([*late[:100], *values]),
        first.batch(start[180:]),
        again.batch(late[90:]),
        first.batch(start[:50]),
        again.batch(ended="crashed"),
        plain.batch(plain.updates(300, skipped=[3])),
        *(each.batch(each.updates(60, skipped=[1], sampled=[0, 20])) for each in sharded),
    ]
    for batch in batches:
        store.ingest(batch)
    return [first.run_id, UUID(int=7), PLAIN]


def kept(store: Store, run: Any) -> None:
    """Use the store's other operations on runs: lists, changes, edits, deletion, forwarding and sessions."""
    gone, half = Trainer(), Trainer()
    for each in (gone, half):
        store.ingest(each.batch([*each.updates(40, sampled=[0]), each.scalars({"loss": 1.0})]))
    (run_id, *_) = run
    store.runs(limit=1, cursor=store.runs(limit=1).next)
    store.scales(run)
    store.groups(), store.runs(Wanted(sort="updates"))
    store.versions(), store.versions(run), store.changes_since(0)
    store.edit(run_id, Edit(name="new", tags=("a",), archived=False))
    assert store.keep(run_id, Judgement("healthy", None, ())).change is not None
    alarmed(store, gone.run_id)
    with store.forwarding_alone("elsewhere"):
        store.begin_forwarding("elsewhere")
    for each in (gone, half):
        store.ingest(each.batch(each.updates(1)))
    for behind in store.behind("elsewhere", 0, 10):
        store.keep_forwarded(store.portion("elsewhere", behind.run_id), "here")
    for each in (gone, half):
        store.delete(each.run_id)
    store.ingest(gone.batch(gone.updates(1)))
    list(store.clear(gone.run_id))
    store.subject(run_id)
    store.keep_token(token := Token(b"digest", "ci", "ada", ("read",), None, 1))
    store.token(token.id), store.tokens(), store.mark_token_used(token.digest, 2)
    store.revoke_token("ci", 3)
    store.revoke_session(b"code", 2, 1), store.is_session_revoked(b"code")


def alarmed(store: Store, run_id: UUID) -> None:
    """Use the store's alert operations: fire, acknowledge, mute, send and end."""
    to = alerts_to(Target(name="own", url="json://127.0.0.1/x"))
    bad = [
        wire.Finding(rule=rule, severity=how, title="bad", explanation="")
        for rule, how in (("skip_rate", "critical"), ("silent", "warning"))
    ]
    trainer = Trainer(run_id, resume_step=40)
    store.ingest(trainer.batch([trainer.update(time=now())]))
    store.keep(run_id, Judgement("bad", "critical", bad), to)
    store.acknowledge(run_id, "skip_rate", "ada")
    taken = store.take("own", 20, None)
    assert taken is not None
    assert store.settle(taken, DeliveryOutcome())
    mute, _ = store.mute(Mute(run_id, None, None, None), "ada")
    store.mute(Mute(PLAIN, None, None, None), "ada")
    store.alerts(run_id), store.mutes(), store.find_mute(mute.mute_id), store.lift(mute)
    store.firing(), store.open_alerts(10), store.runs_to_judge(), store.target_states()
    store.messages(10, {"vision"}, sent=True), store.messages(10, sent=False)
    store.messages_due(), store.tidy_messages({"own"})
    store.keep(run_id, Judgement("bad", "critical", bad[:1]), to)


@pytest.fixture(scope="module")
def unkept() -> Iterator[None]:
    """Keep servers from pruning, so that the commands have rows left to prune."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(upkeep, "FIRST_S", 3600.0)
        yield


@pytest.fixture(scope="module")
def statements(
    postgres: Postgres, migrated: str, tmp_path_factory: pytest.TempPathFactory, unkept: None
) -> Iterator[tuple[list[Statement], Planner]]:
    """Every statement of a server's life on PostgreSQL, and a planner on the same database."""
    url = postgres.new_database(migrated)
    settings = Settings(data_directory=tmp_path_factory.mktemp("runs"), database_url=url)
    app = create_app(settings)
    where = ["--data-dir", str(settings.data_directory), "--database-url", url]
    with logged() as executed, TestClient(app, base_url="http://127.0.0.1:8267") as client:
        store = app.state.service.store
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"
        run = ingested(store)
        kept(store, run)
        asking = Asking(client, app.openapi()["paths"])
        asking.everything(run[0])
        asking.everything(run[1], Asking.VIEWS[::2])
        with postgres.connect(str(make_url(url).database)) as connection:
            connection.execute("UPDATE runs SET updates = 0")
            connection.execute("DELETE FROM rollups WHERE level = 1")
            connection.execute("DELETE FROM scalar_rollups")
            codes = [main(["db", "verify", *where, "--repair"])]
            codes.append(main(["db", "upgrade", *where]))
            days = ["--keep-rows-days", "0", "--keep-samples-days", "0"]
            codes.append(main(["db", "prune", *where, *days, "--yes"]))
            left = connection.execute(
                "SELECT sum(updates) FROM update_pages WHERE run_id = %s", [PLAIN.bytes]
            )
            assert (codes, left.fetchone()) == ([0, 0, 0], (44,))
            yield executed, Planner(connection)
    postgres.drop(url)


def test_every_hot_statement_is_bound_to_one_run(
    statements: tuple[list[Statement], Planner],
) -> None:
    """Every statement touches one run by its key, except those listed in OVER_RUNS, and each of these was executed."""
    executed, planner = statements
    unbound = {each.by: each.text for each in executed if planner.unbound(each)}

    assert {by: unbound[by] for by in unbound if by not in OVER_RUNS} == {}
    assert set(OVER_RUNS) == set(unbound)


def test_all_of_the_schema_was_put_to_use(statements: tuple[list[Statement], Planner]) -> None:
    """The executed statements read, insert and delete in every table of runs."""
    executed, planner = statements
    for verb in ("SELECT", "INSERT", "DELETE"):
        ways = [each for each in executed if each.text.startswith(verb)]
        assert set().union(*map(planner.tables, ways)) - {"runs"} == OF_RUNS - {"runs"}


def test_no_statement_returns_rows_that_it_writes(
    statements: tuple[list[Statement], Planner],
) -> None:
    """SQLite has RETURNING since 3.35 only, and RHEL 8 and 9 have an older one."""
    executed, _ = statements

    assert [each.by for each in executed if "RETURNING" in each.text] == []


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT * FROM moves WHERE run_id = %s", []),
        ("SELECT 1 FROM streams s JOIN moves u USING (run_id, stream) WHERE s.run_id = %s", []),
        ("SELECT 1 FROM streams s JOIN moves u USING (stream) WHERE s.run_id = %s", ["moves"]),
        ("SELECT * FROM moves WHERE run_id IN (%s, '')", ["moves"]),
        ("SELECT * FROM moves WHERE run_id = %s OR step = 1", ["moves"]),
        ("SELECT * FROM moves WHERE run_id >= %s", ["moves"]),
        (
            "SELECT (SELECT max(step) FROM moves u WHERE u.run_id = s.run_id) FROM streams s WHERE run_id = %s",
            ["moves"],
        ),
        ("UPDATE moves SET step = 1 WHERE stream = 1 AND run_id <> %s", ["moves"]),
        (
            "DELETE FROM skips WHERE run_id = %s AND step = (SELECT max(step) FROM moves)",
            ["moves"],
        ),
        ("INSERT INTO ledger SELECT %s, s.stream, 0, 0, 0 FROM streams s", ["streams"]),
    ],
)
def test_a_statement_that_is_not_bound_is_seen(
    statements: tuple[list[Statement], Planner], text: str, tables: list[str]
) -> None:
    """The planner names the tables in which a statement may touch other runs."""
    _, planner = statements

    assert planner.unbound(Statement("", text, [bytes(16)])) == tables
