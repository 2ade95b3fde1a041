"""The files in docs/deploy are consistent, and the servers they start run, answer probes and stop."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import hatch_build
from ampmon_server.cli.parser import parser
from serving import Server
from tools import SYSTEMD
from waiting import DEADLINE_S, wait_for
from warm import completed


DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
ROOT = DEPLOY.parents[1]
INSTRUCTIONS = frozenset(
    "CMD COPY ENTRYPOINT ENV FROM HEALTHCHECK RUN USER VOLUME WORKDIR".split()  # noqa: SIM905
)
SECRET = re.compile(r"token|secret|passw|key", re.IGNORECASE)


def dockerfile() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> dict[str, dict[str, Any]]:
    return {
        each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    }


def pod() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def unit() -> dict[str, list[str]]:
    """The values of the systemd unit by name."""
    said: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "ampmon.service").read_text(), re.M):
        said.setdefault(name, []).append(value)
    return said


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every ampmon command in these files and the operations page: its file name and arguments."""
    instructions = dict(dockerfile())
    yield "Dockerfile", yaml.safe_load(instructions["CMD"])
    yield "Dockerfile", yaml.safe_load(instructions["HEALTHCHECK"].partition("CMD ")[2])[1:]
    yield "compose.yaml", compose()["services"]["ampmon"]["command"]
    yield "ampmon.service", shlex.split(unit()["ExecStart"][0])[1:]
    server = pod()["containers"][0]
    yield "kubernetes.yaml", server["args"]
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield "kubernetes.yaml", server[kind]["exec"]["command"][1:]
    pages = [*DEPLOY.glob("*.md"), *DEPLOY.glob("*.yaml"), ROOT / "docs" / "operations.md"]
    for page in pages:
        for line in re.findall(
            r"(?:^|[ /])ampmon ((?:token|db|health) .*)$", page.read_text(), re.M
        ):
            yield page.name, shlex.split(re.split(r" +#| *&& *| > |`|: ", line)[0])


def test_every_command_is_one() -> None:
    """The real parser accepts every ampmon command in these files and on the operations page."""
    written = [each for each in commands() if "..." not in each[1]]
    for _, words in written:
        parser().parse_args(words)

    assert len(written) >= 12


SERVES = {place: words for place, words in commands() if words[:1] == ["serve"]}


def of_here(words: Sequence[str], database: str, token: Path) -> list[str]:
    """The arguments of `ampmon serve` with the test's paths and database, and one worker."""
    swapped = {
        "--database-url": database,
        "--token-file": str(token),
        "--workers": "1",
        "--drain": "0.5",
    }
    said: list[str] = []
    for word in words[1:]:
        filled = word.replace("${AMPMON_HOST}", "ampmon.example")  # as docker compose does
        said.append(swapped.get(said[-1], filled) if said else filled)
    if "--data-dir" in said:  # the test passes its own
        del said[said.index("--data-dir") : said.index("--data-dir") + 2]
    return said


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(each, marks=[] if each == "compose.yaml" else pytest.mark.rare)
        for each in sorted(SERVES)
    ],
)
def test_what_is_started_serves(
    place: str, new_server: Callable[..., Server], empty_database: str, tmp_path: Path
) -> None:
    """Each server starts with its file's arguments, answers its host name and probes, and exits with code 0."""
    token = tmp_path / "token"
    token.write_text("t" * 43)
    words = of_here(SERVES[place], empty_database, token)
    server = new_server(options=words, token_file=None)
    if "--token-file" in words:
        server.token_file = token
    where = ["--data-dir", str(server.directory)]
    probes = [each for at, each in commands() if at == place and each[0] == "health"]
    for probe in probes or [["health"]]:
        asked = [str(token) if word.startswith("/run/secrets/") else word for word in probe]
        assert completed([*asked, *where]).returncode == 0, asked
    if "--allow-host" in words:
        name = words[words.index("--allow-host") + 1]
        assert server.request("GET", "/api/v1/runs", headers={"Host": name}).status == 200
    assert server.process is not None
    server.process.terminate()

    assert server.process.wait(DEADLINE_S) == 0


def test_root_gets_a_link_of_a_service(new_server: Callable[..., Server]) -> None:
    """The command for systemd prints a sign-in link, although the token belongs to the service's user."""
    held = "/var/lib/ampmon/token"
    [words] = [each for place, each in commands() if place == "README.md" and held in each]
    server = new_server()
    token = server.directory / "token"
    if os.geteuid() == 0:
        os.chown(token, pwd.getpwnam("nobody").pw_uid, -1)
    words = [str(token) if word == held else word for word in words]

    link = completed([*words, "--url", server.url]).stdout
    assert link.startswith("https://ampmon.example/login?code=")


def test_health_says_what_is_wrong(new_server: Callable[..., Server]) -> None:
    """`ampmon health` exits with 1 and one line if the server is stopping or gone. With --alive, stopping passes."""
    server = new_server(options=["--drain", "3600"])
    where = ["--data-dir", str(server.directory)]
    well = completed(["health", *where])
    assert server.process is not None
    server.process.terminate()
    wait_for(lambda: server.request("GET", "/readyz").status == 503)
    stopping, alive = (completed(["health", *more, *where]) for more in ([], ["--alive"]))
    server.process.terminate()  # a second signal ends the drain
    assert server.process.wait(DEADLINE_S) == 0
    gone = completed(["health", "--url", server.url, *where])

    assert (well.returncode, well.stdout) == (0, "ready\n")
    assert (stopping.returncode, stopping.stderr) == (1, "ampmon health: The server is stopping.\n")
    assert (alive.returncode, alive.stdout) == (0, "alive\n")
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)


def test_the_image_holds_no_secret_and_runs_as_nobody() -> None:
    """The Dockerfile uses known instructions, runs without root, sets no secret and copies all the wheel needs."""
    instructions = dockerfile()
    words = [word for word, _ in instructions]
    last = dict(instructions)
    set_there = " ".join(rest for word, rest in instructions if word == "ENV")

    assert set(words) <= INSTRUCTIONS
    assert words[0] == "FROM"
    assert last["FROM"].startswith("python:")
    assert last["USER"] == "10001:10001"
    assert words.index("USER") < words.index("CMD")
    assert not SECRET.search(set_there)
    kept = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.M)
    wheel = re.search(r"^only-include = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert wheel is not None
    needed = [
        *yaml.safe_load(wheel[1]),
        *hatch_build.SOURCES,
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ]
    for part in needed:
        assert (ROOT / part).exists()
        assert any(part == each or part.startswith(f"{each}/") for each in kept), part


def test_compose_hangs_together() -> None:
    """Compose services have images, refer to existing services and volumes, and contain no password."""
    file = compose()
    services = file["services"]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped"
        assert ":" in service["image"] or "build" in service, name
        assert set(service.get("depends_on", {})) <= set(services)
        mounts = [each.partition(":") for each in service.get("volumes", [])]
        assert {volume for volume, _, _ in mounts} <= set(file["volumes"])
        for variable, value in service.get("environment", {}).items():
            assert "PASSWORD" not in variable or value.startswith("${DATABASE_PASSWORD"), name
    built = services["ampmon"]["build"]
    assert (DEPLOY / built["context"] / built["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert services["ampmon"]["network_mode"] == "service:proxy"
    assert services["proxy"]["command"][-1] == "127.0.0.1:8267"
    assert services["database"]["healthcheck"]["test"][0] == "CMD"


def test_the_manifest_hangs_together() -> None:
    """The manifest's selectors, ports and volumes match, containers are unprivileged, and secrets are references."""
    objects, template = manifests(), pod()
    spec = objects["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    containers = template["containers"]
    volumes = {each["name"]: each for each in template["volumes"]}

    assert "Secret" not in objects
    assert spec["selector"]["matchLabels"] == labels == objects["Service"]["spec"]["selector"]
    ports = {port["name"] for each in containers for port in each.get("ports", [])}
    assert {each["targetPort"] for each in objects["Service"]["spec"]["ports"]} <= ports
    assert volumes["proxy"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert template["securityContext"]["runAsNonRoot"]
    for each in containers:
        assert {mount["name"] for mount in each["volumeMounts"]} <= set(volumes)
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for variable in each.get("env", []):
            assert variable["name"] == "AMPMON_DIR" or "valueFrom" in variable
    drain = int(containers[0]["args"][containers[0]["args"].index("--drain") + 1])
    sleep = int(containers[1]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert drain < sleep < template["terminationGracePeriodSeconds"]


@SYSTEMD.needed
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze` verifies the unit and rates its exposure as low."""
    program = Path(sys.executable).with_name("ampmon")
    file = tmp_path / "ampmon.service"
    text = (DEPLOY / "ampmon.service").read_text()
    file.write_text(text.replace("/opt/ampmon/bin/ampmon", str(program)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    exposed = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    assert exposed.returncode == 0, exposed.stdout[-300:]
    assert unit()["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert Path("/bin/kill").exists()
