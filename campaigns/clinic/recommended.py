"""What page, report and doctor recommend for a run: all code that is not marked as an alternative."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

from playwright.sync_api import Page, expect

from ampmon_server.cli import CANNOT, main
from ampmon_server.client.answering import answering
from ampmon_server.client.answers import RECOMMENDED
from ampmon_server.report import gather
from ampmon_server.report import page as report_of
from campaigns.clinic.pictures import WAIT_MS, drawn
from threaded_server import ThreadedServer


CHARTS = ("whatif", "simulated")
"""The charts that show a setting."""
_CODES = """
[...document.querySelectorAll(".finding .code, .part .code")]
  .filter((each) => !each.textContent.trim().startsWith("Alternative"))
  .map((each) => each.querySelector("pre").textContent).filter(Boolean)
"""
_IN_A_REPORT = re.compile(
    r"(?:<p class='caption'>([^<]*)</p>)?<pre><code>(.*?)</code></pre>", re.DOTALL
)
_BY_THE_DOCTOR = re.compile(rf"^  {RECOMMENDED}\n((?:    .*\n)+)", re.MULTILINE)


class Recommendations(NamedTuple):
    """The code recommended for one run, by where it is shown."""

    page: tuple[str, ...]
    report: tuple[str, ...]
    doctor: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """Whether all three have the same, and at most one."""
        return len(self.page) <= 1 and self.page == self.report == self.doctor


class Reading:
    """Reads the recommendations for a server's runs, with ``page`` as the browser page."""

    def __init__(self, server: ThreadedServer, page: Page) -> None:
        self._server, self._page = server, page
        page.goto(server.login_link())

    def of(self, run_id: str) -> Recommendations:
        """The recommendations for a run, including one from "Find a better setting". Blocks."""
        return Recommendations(
            tuple(dict.fromkeys(self._on_the_page(run_id))),
            tuple(self._in_the_report(run_id)),
            tuple(self._by_the_doctor(run_id)),
        )

    def _on_the_page(self, run_id: str) -> Iterator[str]:
        self._page.goto("about:blank")
        self._page.goto(f"{self._server.url}/#/runs/{run_id}")
        verdict = self._page.locator(".run > header .verdict:visible, .answer:visible")
        expect(verdict.first).to_be_visible(timeout=WAIT_MS)
        for chart in CHARTS:
            drawn(self._page, chart)
        yield from self._page.evaluate(_CODES)
        better = self._page.get_by_role("button", name="Find a better setting")
        if better.is_visible():
            with self._page.expect_response(
                re.compile("figures/simulated.*sim_policy")
            ) as drawn_anew:
                better.click()
            meta = drawn_anew.value.json()["layout"]["meta"]
            if meta["code"] and not meta["standing"].startswith("Alternative"):
                yield meta["code"]

    def _in_the_report(self, run_id: str) -> Iterator[str]:
        with answering(self._server.url, None, self._server.token_file) as server:
            text = report_of(gather(server, run_id), "0")
        for standing, code in _IN_A_REPORT.findall(text.partition("<h2>Configuration</h2>")[0]):
            if not standing.startswith("Alternative"):
                yield unescape(code)

    def _by_the_doctor(self, run_id: str) -> Iterator[str]:
        where = ["--url", self._server.url, "--token-file", str(self._server.token_file)]
        asked = ["doctor", run_id, *where]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if main([*asked, "--simulate"]) == CANNOT:  # without an update nothing can be replayed
                main(asked)
        for code in _BY_THE_DOCTOR.findall(out.getvalue()):
            yield "\n".join(line.removeprefix("    ") for line in code.splitlines())
