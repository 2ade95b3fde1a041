"""What keeps somebody out of a page, by axe's rules. Knows no view."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def violations(page: Page) -> list[str]:
    """What axe finds against the page as it stands: the rule, and where."""
    options = {"resultTypes": ["violations"]}  # of all else, one element is told instead of each
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {', '.join(str(node['target'][0]) for node in each['nodes'])}"
        for each in found
    ]
