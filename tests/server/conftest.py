"""Fixtures of the server tests: an empty store, and the app in this process with its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from fastapi import FastAPI
from sqlalchemy import make_url
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.schema import migrations
from certificates import Authority
from databases import Databases, provide, shared_work
from postgres import Postgres
from timed_server import Served, serving


URL = "http://127.0.0.1:8267"

LATER = """
from alembic import op

revision, down_revision, branch_labels, depends_on = "9000", "{}", None, None

def upgrade():
    op.execute("CREATE TABLE later (mine INTEGER)")
    op.execute("CREATE TABLE later_too (mine INTEGER)")
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `engines` or `storage` on both engines; `storage` on PostgreSQL only as rare tests."""
    marked = {marker.name for marker in metafunc.definition.iter_markers()}
    if marked & {"engines", "storage"} and "database" in metafunc.fixturenames:
        other = pytest.param("postgresql", marks=[] if "engines" in marked else pytest.mark.rare)
        metafunc.parametrize("database", ["sqlite", other], indirect=True)


@pytest.fixture(scope="session")
def migrated(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a PostgreSQL database at the newest schema, used as a template."""
    url = postgres.new_database()
    directory = tmp_path_factory.mktemp("migrated")
    Store.open(Settings(data_directory=directory, database_url=url)).close()
    return str(make_url(url).database)


@pytest.fixture(scope="session", autouse=True)
def _shared_work() -> Iterator[None]:
    with shared_work():
        yield


@pytest.fixture(scope="session")
def databases(postgres: Postgres, migrated: str) -> Iterator[Databases]:
    """PostgreSQL databases at the newest schema, lent to one test after another."""
    databases = Databases(postgres, migrated)
    yield databases
    databases.close()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of an empty store. None means the file in the data directory."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield None
        return
    databases: Databases = request.getfixturevalue("databases")
    with databases.lent() as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path, database: str | None) -> Settings:
    """Settings of a server with an empty database at the newest schema."""
    settings = Settings(
        data_directory=tmp_path / "data",
        database_url=database,
        body_bytes_max=2**20,
        decoded_bytes_max=2 * 2**20,
        judging=False,  # it advances a run's version at any time
    )
    if database is None:
        settings.data_directory.mkdir(mode=0o700)
        provide(settings.data_directory)
    return settings


@pytest.fixture
def store(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Store]:
    if settings.database_url is not None:
        yield request.getfixturevalue("databases").store(settings)
        return
    opened = Store.open(settings)
    yield opened
    opened.close()


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def stranger(app: FastAPI) -> Iterator[TestClient]:
    """A client of the running app without credentials."""
    with TestClient(
        app, base_url=URL, raise_server_exceptions=False, follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def client(app: FastAPI, stranger: TestClient) -> Iterator[TestClient]:
    """A client of the running app with the data directory's token."""
    token = app.state.service.keys.token
    known = TestClient(
        app,
        base_url=URL,
        headers={"Authorization": f"Bearer {token}"},
        raise_server_exceptions=False,
        follow_redirects=False,
    )
    # Not entered: the app runs only once, on an event loop that both clients share.
    known.portal = stranger.portal
    yield known
    known.close()


@pytest.fixture
def holding(app: FastAPI, stranger: TestClient) -> Iterator[Callable[..., TestClient]]:
    """Create a token, and return a client that sends it."""
    made: list[TestClient] = []

    def make(*scopes: str, projects: Sequence[str] | None = None, owner: str = "ada") -> TestClient:
        name = f"token-{len(made)}"
        secret, _ = app.state.service.tokens.new(name, owner, scopes, projects)
        headers = {"Authorization": f"Bearer {secret}"}
        url = str(stranger.base_url)
        made.append(TestClient(app, base_url=url, headers=headers, follow_redirects=False))
        made[-1].portal = stranger.portal
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def send(client: TestClient):
    """Ingest a batch as msgpack and return the acknowledgement."""

    def post(batch: wire.Batch) -> dict[str, object]:
        answer = client.post(
            "/api/v1/ingest",
            content=wire.encode(batch),
            headers={"Content-Type": "application/msgpack"},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """The server in a thread, whose timeouts end when a test says so."""
    with serving(settings) as server:
        yield server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def later_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a revision after the newest, which creates the table `later`, so that a current database is outdated."""
    folder = tmp_path / "versions"
    folder.mkdir()
    newest = ScriptDirectory.from_config(migrations.config()).get_current_head()
    (folder / "9000_later.py").write_text(LATER.format(newest))
    monkeypatch.setattr(migrations, "VERSIONS", (*migrations.VERSIONS, folder))
    return "9000"
