"""How a browser comes in: one-time links out, a cookie for whoever opens one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from ampmon_server.auth.guard import LOGIN_PATH, has_cookie, unknown_page
from ampmon_server.auth.keys import COOKIE_SECONDS
from ampmon_server.auth.logins import CODE_SECONDS
from ampmon_server.routes.answers import ServiceDependency, json_answer


router = APIRouter()


@router.post("/api/v1/login-links", status_code=201)
def make_link(request: Request, service: ServiceDependency) -> Response:
    """A new one-time link, good for ten minutes."""
    # The name the caller used is the one that works from where the caller is; the guard has checked it.
    url = (
        f"{request.url.scheme}://{request.headers['host']}{LOGIN_PATH}?code={service.logins.new()}"
    )
    return json_answer({"url": url, "expires_s": CODE_SECONDS}, status=201)


@router.get(LOGIN_PATH, include_in_schema=False)
def log_in(request: Request, service: ServiceDependency, code: str = "") -> Response:
    """Trade a one-time code for a cookie, and go to the page."""
    if not service.logins.redeem(code):
        if has_cookie(request.headers, service.keys):
            return RedirectResponse("/", 303)
        return unknown_page(
            "This link was used or has expired", "Make a new one with: ampmon token link"
        )
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        service.keys.cookie_name,
        service.keys.cookie(),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer
