"""The unauthenticated proof route, which does not reveal which tokens exist."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon.transport.proof import digest_of, id_of, proof
from ampmon_server.http.auth.limits import Rate


NONCE = "0123456789abcdef" * 4
HERE = "127.0.0.1:8267"


def ask(client: TestClient, token_id: str, **more: str) -> tuple[int, str]:
    """Status, and proof or detail."""
    query = {"nonce": NONCE, "token": token_id, "address": HERE, **more}
    answer = client.get("/api/v1/proof", params=query)
    return answer.status_code, answer.json().get("proof") or answer.json()["detail"]


def test_known_tokens_are_proven_and_others_are_not(app: FastAPI, stranger: TestClient) -> None:
    """Valid tokens are proven; a revoked or unknown one gets 200 with a false proof. No use is recorded."""
    service = app.state.service
    secret, made = service.tokens.new("ci", "ada", ["read"])
    own = digest_of(service.keys.token)
    assert ask(stranger, id_of(own)) == (200, proof(own, NONCE, HERE))
    assert ask(stranger, made.id) == (200, proof(digest_of(secret), NONCE, HERE))
    service.tokens.revoke(made.id)
    revoked, unknown = ask(stranger, made.id), ask(stranger, "0" * 12)

    assert (revoked[0], unknown[0]) == (200, 200)
    assert len({revoked[1], unknown[1], proof(digest_of(secret), NONCE, HERE)}) == 3
    assert ask(stranger, "0" * 12) == unknown
    assert ask(stranger, "0" * 12, nonce=NONCE[::-1]) != unknown
    assert service.store.tokens()[0].last_used is None


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"address": "127.0.0.1:9000"}, 421),
        ({"address": "evil.example:8267"}, 421),
        ({"address": "a\nb"}, 422),
        ({"address": ""}, 422),
        ({"nonce": NONCE[:-1]}, 422),
        ({"nonce": NONCE.upper()}, 422),
        ({"nonce": NONCE + "\n"}, 422),
        ({"token": "0" * 64}, 422),
        ({"token": "' OR 1=1 --"}, 422),
    ],
)
def test_what_is_no_question_gets_no_proof(
    stranger: TestClient, more: dict[str, str], status: int
) -> None:
    """Another server's address gets 421; a malformed address, nonce or id gets 422."""
    assert ask(stranger, "0" * 12, **more)[0] == status


def test_guesses_are_so_many_and_known_tokens_go_on(app: FastAPI, stranger: TestClient) -> None:
    """After five guesses unknown ids get 429, while a token used before and the server's own are still answered."""
    service = app.state.service
    _, made = service.tokens.new("ci", "ada", ["read"])
    own = id_of(digest_of(service.keys.token))
    assert ask(stranger, made.id)[0] == 200
    service.tokens._guesses = Rate(1e-6, 5)
    answers = [ask(stranger, f"{guess:012x}") for guess in range(8)]

    assert [status for status, _ in answers] == [200] * 5 + [429] * 3
    assert (ask(stranger, made.id)[0], ask(stranger, own)[0]) == (200, 200)
