"""Tokens in the store, and what they mean for runs: one contract on every engine."""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from ampmon.transport.proof import id_of
from ampmon_server.http.auth.limits import Rate, TooManyAttempts
from ampmon_server.http.auth.tokens import KNOWN_MAX, KNOWN_S, NOTED_US, PREFIX, Tokens
from ampmon_server.store import NameTaken, NotFound, Sender, Store, Token, Wanted
from batches import Trainer
from doubles import ManualClock
from statements import statements


SCOPES = ("ingest", "read")


def token(name: str, **more: object) -> Token:
    digest = hashlib.sha256(name.encode()).digest()
    fields = {"owner": "ada", "scopes": SCOPES, "projects": None, "made": 100, **more}
    return Token(digest, name, **fields)  # type: ignore[arg-type]


def trained(store: Store, project: str, sender: Sender | None = None) -> UUID:
    trainer = Trainer(uuid4(), project=project)
    batch = trainer.batch(trainer.updates(3))
    store.ingest(batch, *([] if sender is None else [sender]))
    return trainer.run_id


@pytest.mark.storage
def test_a_token_is_kept_as_it_was_made(store: Store) -> None:
    """A token is found by its id, the list is newest first, and an unknown id finds none."""
    first, second = token("first", projects=("a", "b"), expires=900), token("second", made=200)
    for each in (first, second):
        store.keep_token(each)

    assert store.tokens() == [second, first]
    assert store.token(first.id) == first
    assert store.token("0" * 12) is None
    assert store.token("' OR 1=1 --") is None


@pytest.mark.storage
def test_a_token_is_revoked_by_id_or_name(store: Store) -> None:
    """A token is revoked by id or name, with its time; a revoked or unknown one raises NotFound."""
    for each in (token("one"), token("two"), token("three")):
        store.keep_token(each)
    store.revoke_token("one", 500)
    store.revoke_token(token("two").id, 600)

    assert {each.name: each.revoked for each in store.tokens()} == {
        "one": 500,
        "two": 600,
        "three": None,
    }
    for name in ("one", token("two").id, "four", "", "%"):
        with pytest.raises(NotFound):
            store.revoke_token(name, 700)


@pytest.mark.storage
def test_a_name_is_taken_as_long_as_its_token_is_good(store: Store) -> None:
    """A name is taken while its token is valid, and free once that has expired or is revoked."""
    store.keep_token(token("ci", expires=150))
    with pytest.raises(NameTaken, match="'ci'"):
        store.keep_token(Token(b"\1" * 32, "ci", "ada", SCOPES, None, 149))
    store.keep_token(Token(b"\2" * 32, "ci", "ada", SCOPES, None, 150))
    store.revoke_token("ci", 160)
    store.keep_token(Token(b"\3" * 32, "ci", "ada", SCOPES, None, 170))

    assert [each.is_good(170) for each in store.tokens()] == [True, False, False]


@pytest.mark.storage
def test_the_last_use_is_the_latest(store: Store) -> None:
    """Of uses recorded out of order, the latest is kept."""
    kept = token("ci")
    store.keep_token(kept)
    for now in (300, 500, 400):
        store.mark_token_used(kept.digest, now)

    found = store.token(kept.id)
    assert found is not None
    assert found.last_used == 500


def test_only_a_hash_is_stored(store: Store) -> None:
    """A new token authenticates, altered ones do not, and the database holds only its hash."""
    tokens = Tokens(store)
    secret, made = tokens.new("ci", "ada", SCOPES)
    with store._engine.connect() as connection:
        rows = repr(connection.execute(text("SELECT * FROM tokens")).all())

    assert secret.startswith(PREFIX)
    assert len(secret) == len(PREFIX) + 43
    assert made.digest == hashlib.sha256(secret.encode()).digest()
    assert made.id == id_of(made.digest) == made.digest.hex()[:12]
    assert secret not in rows
    assert secret.removeprefix(PREFIX) not in rows
    assert asyncio.run(tokens.with_secret(secret)) == made
    for wrong in (secret[:-1], secret + "x", secret.swapcase(), secret.removeprefix(PREFIX), ""):
        assert asyncio.run(tokens.with_secret(wrong)) is None
    tokens.close()


def test_a_lookup_is_kept_for_two_seconds(store: Store) -> None:
    """Lookups of known and unknown tokens are cached for 2 s; then another process's revocation takes effect."""
    clock = ManualClock()
    tokens, others = Tokens(store, monotonic=clock), Tokens(store)
    secret, _ = tokens.new("ci", "ada", SCOPES)
    with statements(store._engine) as executed:
        for _ in range(100):
            asyncio.run(tokens.with_secret(secret))
            asyncio.run(tokens.with_secret(PREFIX + "unknown"))
            clock.advance(KNOWN_S / 101)
    assert len([each for each in executed if each.startswith("SELECT")]) == 2
    others.revoke("ci")
    clock.advance(KNOWN_S / 50)
    assert asyncio.run(tokens.with_secret(secret)) is None
    tokens.close(), others.close()


def test_unknown_tokens_take_no_room(store: Store) -> None:
    """However many unknown tokens are tried, the memory of them is bounded."""
    tokens = Tokens(store)
    for number in range(KNOWN_MAX + 50):
        tokens._look(f"{number:012x}")

    assert (len(tokens._known), len(tokens._unknown)) == (0, KNOWN_MAX)
    tokens.close()


def test_guesses_hold_up_nobody_who_has_a_token(store: Store) -> None:
    """During a rate-limited flood of guesses, a valid token new to this process is accepted at once."""
    tokens, others = Tokens(store), Tokens(store)
    secret, made = others.new("ci", "ada", SCOPES)
    tokens._guesses = Rate(1e-6, 3)

    async def flood() -> list[str]:
        outcomes = []
        for number in range(6):
            try:
                outcomes.append(str(await tokens.with_secret(f"{PREFIX}{number}")))
            except TooManyAttempts:
                outcomes.append("wait")
        return outcomes

    assert asyncio.run(flood()) == ["None"] * 3 + ["wait"] * 3
    assert asyncio.run(tokens.with_secret(secret)) == made
    tokens.close(), others.close()


def test_a_use_is_noted_once_a_minute(store: Store) -> None:
    """The last use is written when a token is first used, and then at most once a minute."""
    now = [1e9]
    tokens = Tokens(store, clock=lambda: now[0])
    secret, made = tokens.new("ci", "ada", SCOPES)
    seen = []
    for later in (0.0, 1.0, 58.0, 2.0):
        now[0] += later
        asyncio.run(tokens.with_secret(secret))
        tokens._noting.submit(int).result()  # wait for the one thread that records uses
        found = store.token(made.id)
        assert found is not None
        seen.append(found.last_used)

    first = round(1e9 * 1e6)
    assert seen == [first, first, first, first + NOTED_US + 1_000_000]
    tokens.close()


def test_an_expired_token_is_good_no_more(store: Store) -> None:
    """A token fails from its expiry on, even if it was looked up just before."""
    now = [1e9]
    tokens = Tokens(store, clock=lambda: now[0])
    secret, made = tokens.new("ci", "ada", SCOPES, expires=round((1e9 + 10) * 1e6))

    assert asyncio.run(tokens.with_id(made.id)) == made
    now[0] += 10
    assert asyncio.run(tokens.with_id(made.id)) is None
    assert asyncio.run(tokens.with_secret(secret)) is None
    tokens.close()


def test_a_run_belongs_to_who_started_it(store: Store) -> None:
    """A run's owner is the first sender; another owner's start is refused, an admin's is not."""
    trainer = Trainer(uuid4(), rank=1, world_size=2)
    store.ingest(trainer.batch(trainer.updates(2)), Sender("grace"))
    first = Trainer(trainer.run_id, world_size=2)
    with pytest.raises(NotFound):
        store.ingest(first.batch(first.updates(2)), Sender("linus"))
    store.ingest(first.batch(first.updates(2)), Sender("linus", admin=True))
    again = Trainer(trainer.run_id, resume_step=2)
    store.ingest(again.batch(again.updates(2)))

    assert store.subject(trainer.run_id).owner == "grace"
    assert store.run(trainer.run_id)[0].owner == "grace"
    assert store.subject(trained(store, "vision")).owner == "ada"


@pytest.mark.storage
def test_a_sender_is_kept_to_its_projects(store: Store) -> None:
    """A batch for another project is refused, in the same words for new and known runs, and nothing is stored."""
    mine, other = Sender("ada", frozenset({"vision"})), trained(store, "speech")
    (before,) = store.versions([other])
    late = Trainer(other, resume_step=3, project="vision")
    messages = []
    for trainer in (late, Trainer(uuid4(), project="speech")):
        with pytest.raises(NotFound) as refused:
            store.ingest(trainer.batch(trainer.updates(2)), mine)
        messages.append(str(refused.value).replace(str(trainer.run_id), "R"))

    assert messages[0] == messages[1]
    assert store.versions() == [before]
    assert store.subject(trained(store, "vision", mine)).project == "vision"


def test_a_run_does_not_change_sides(store: Store) -> None:
    """A sender who may write a run cannot move it into a project that it may not write."""
    later = Trainer(uuid4(), rank=1, world_size=2, project="vision")
    first = Trainer(later.run_id, world_size=2, project="speech")
    mine = Sender("ada", frozenset({"vision"}))
    store.ingest(later.batch(later.updates(1)), mine)
    with pytest.raises(NotFound):
        store.ingest(first.batch(first.updates(1)), mine)

    assert store.subject(later.run_id).project == "vision"


@pytest.mark.storage
def test_lists_are_kept_to_projects(store: Store) -> None:
    """List, groups, scales and versions cover only the given projects, and none for an empty set."""
    runs = {project: trained(store, project) for project in ("vision", "speech", "text")}
    for within in ({"vision"}, {"vision", "text"}, set()):
        of = frozenset(within)
        wanted = {str(runs[project]) for project in within}
        listed = store.runs(Wanted(projects=of))
        assert ({each.run_id for each in listed.rows}, listed.total) == (wanted, len(wanted))
        assert set(store.groups(within=of).projects) == within
        assert {str(run) for run in store.scales(list(runs.values()), of)} == wanted
        assert {str(run) for run, _, _ in store.versions(within=of)} == wanted
    assert store.runs(Wanted(project="speech", projects=frozenset({"vision"}))).total == 0
