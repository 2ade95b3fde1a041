"""The server serves only tested versions of its browser scripts, and no file outside its folders."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install
from ampmon_server.cli import main
from ampmon_server.pages import assets


LIT_HTML = ("3.3.3", "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2")
"""The release of web/js/lit-html.js and the script's SHA-256."""


def test_the_installed_script_is_the_one_that_was_tested() -> None:
    """The installed Plotly version is listed with the hash of its script."""
    served = hashlib.sha256(assets.plotly_script().read_bytes()).hexdigest()

    assert assets.PLOTLY_SHA256[assets.plotly_version()] == served
    assert assets.check_plotly() is None


def test_a_script_that_was_changed_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server does not start with a modified script, and says in one line how to fix it."""
    changed = tmp_path / "plotly.min.js"
    changed.write_bytes(assets.plotly_script().read_bytes() + b" ")
    monkeypatch.setattr(assets, "plotly_script", lambda: changed)
    monkeypatch.setattr(assets, "plotly", assets.plotly.__wrapped__)

    assert main(["serve", "--port", "0", "--data-dir", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigurationError, match="pip install --force-reinstall"):
        assets.check_plotly()


def test_a_missing_script_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the plotly package or its script, the error says what to install."""
    monkeypatch.setattr(assets, "plotly", assets.plotly.__wrapped__)
    with monkeypatch.context() as without_package:
        without_package.setattr(assets, "find_spec", lambda name: None)
        with pytest.raises(ConfigurationError, match=re.escape(install("server"))):
            assets.check_plotly()

    monkeypatch.setattr(assets, "plotly_script", lambda: tmp_path / "plotly.min.js")
    with pytest.raises(ConfigurationError, match="pip install --force-reinstall"):
        assets.check_plotly()


def test_a_script_that_changes_while_it_is_served_is_served_as_it_was(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running server keeps serving the script it checked, even after the file changes."""
    copied = tmp_path / "plotly.min.js"
    copied.write_bytes(assets.plotly_script().read_bytes())
    monkeypatch.setattr(assets, "plotly_script", lambda: copied)
    monkeypatch.setattr(assets, "plotly", cache(assets.plotly.__wrapped__))
    assets.check_plotly()
    copied.write_bytes(b"alert(1)")

    served = client.get("/vendor/plotly.min.js").content
    assert hashlib.sha256(served).hexdigest() == assets.PLOTLY_SHA256[assets.plotly_version()]


def test_the_view_library_is_the_one_of_its_release() -> None:
    """The copy of lit-html names its release and has that release's hash."""
    script = (assets.web_directory() / "js" / "lit-html.js").read_bytes()

    assert LIT_HTML[0].encode() in script
    assert hashlib.sha256(script).hexdigest() == LIT_HTML[1]


def test_a_version_that_nobody_tested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An untested Plotly version is named in a warning."""
    monkeypatch.setattr(assets, "plotly_version", lambda: "7.99.0")

    assert "7.99.0" in (assets.check_plotly() or "")


FOLDERS = {
    "/js/1": "main.js",
    "/css/1": "base.css",
    "/vendor": "plotly.min.js",
    "/docs/findings/img": "backward_overflow.png",
}
"""One existing file per folder."""
PATHS = (
    "%2e%2e%2findex.html",
    "..%2findex.html",
    "..%5cindex.html",
    "%2e%2e%2f%2e%2e%2ftesting.md",
    "..%2fjs%2fmain.js",
    ".%2f{there}",
    "{there}%00",
    "{there}%00.html",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "{absolute}",
    "%2e",
    "",
)


@pytest.mark.usefixtures("documentation")
def test_no_path_leads_out_of_a_folder(client: TestClient) -> None:
    """A file is served only by its plain name; any path out of its folder gives 404."""
    absolute = quote(str(assets.web_directory() / "index.html"), safe="")
    for folder, there in FOLDERS.items():
        assert client.get(f"{folder}/{there}").status_code == 200
        for path in PATHS:
            asked = f"{folder}/{path.format(there=there, absolute=absolute)}"
            assert client.get(asked).status_code == 404, asked


def test_the_page_names_its_modules_and_colours(client: TestClient) -> None:
    """The browser loads none only after a module that needs it: a slow network would add up these waits."""
    shell = client.get("/").text
    assert '<link rel="preload" href="roles.json" as="fetch" crossorigin>' in shell
    named = dict(re.findall(r'"modulepreload" href="(js/\w+/([\w-]+\.js))"', shell))
    needed, files = {"main.js"}, assets.page_files("js")
    for _ in files:
        needed.update(
            *(re.findall(r'from "\./([\w-]+\.js)"', files[name].read_text()) for name in needed)
        )
    assert set(named.values()) == needed
    assert re.findall(r'src="(js/\w+/main\.js)"', shell) == [
        at for at, name in named.items() if name == "main.js"
    ]
    assert {client.get(f"/{at}").status_code for at in named} == {200}
