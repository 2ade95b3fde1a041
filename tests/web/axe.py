"""Accessibility violations on a page, by axe's rules."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


_AXE = Axe().axe_script
_RUN = """within => axe.run(within ?? document, {
    resultTypes: ["violations"], rules: {"target-size": {enabled: true}},
}).then(({violations}) =>
    violations.map(({id, help, nodes}) => `${id}: ${help}: ${nodes.map(node => node.target[0]).join(", ")}`))"""


def violations(page: Page, within: str | None = None) -> list[str]:
    """Run axe on the page, or on the element ``within``. Return each broken rule with the elements that break it."""
    if not page.evaluate("Boolean(window.axe)"):  # loading axe costs half as much as a run
        page.evaluate(_AXE)
    return list(page.evaluate(_RUN, within))
