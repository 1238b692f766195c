"""examples/compose.yaml: parsed, and its settings tried without containers.

The tests need no container engine, so no image is built or pulled. They check that the names in the
file are those of the Dockerfile and the configuration, and that a daemon with the file's
environment works on a MinIO whose data directory is laid out as the file's command does it.
"""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import strictyaml

from daemon.config import ENVIRONMENT_PREFIX, FIELDS
from tests.e2e.daemon import ROOT, UNANSWERED, Daemon, ask, running, wait_until
from tests.examples.test_proxies import program
from tests.test_dist import instructions
from tools import minio
from tools.ports import kept_port

FILE = ROOT / "examples" / "compose.yaml"


pytestmark = pytest.mark.s3  # so that a missing MinIO is built before the first test


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document: dict[str, Any] = strictyaml.load(FILE.read_text()).data
    assert set(document) == {"services", "volumes"}
    found: dict[str, Any] = document["services"]
    for service in found.values():
        for mounted in (mount.split(":")[0] for mount in service["volumes"]):
            is_file = mounted.startswith(".") and (FILE.parent / mounted).is_file()
            assert is_file or mounted in document["volumes"], mounted
    return found


def test_the_daemons_service_fits_the_image(services: dict[str, Any]) -> None:
    daemon, image = services["headgate"], instructions()
    assert (FILE.parent / daemon["build"]["context"]).resolve() == ROOT
    assert daemon["ports"] == [f"127.0.0.1:7440:{image['EXPOSE'][0]}"]
    assert [mount.split(":")[1] for mount in daemon["volumes"]] == image["VOLUME"]
    assert set(daemon["depends_on"]) <= set(services)
    keys = {ENVIRONMENT_PREFIX + field.name.upper() for field in FIELDS}
    named = {name for name in daemon["environment"] if name.startswith(ENVIRONMENT_PREFIX)}
    assert named and named <= keys


@pytest.mark.slow
def test_a_prometheus_with_its_file_scrapes_a_daemon_and_takes_the_rules(
    services: dict[str, Any], shared_daemon: Daemon, tmp_path: Path
) -> None:
    given = {mount.split(":")[1]: FILE.parent / mount.split(":")[0] for mount in
             services["prometheus"]["volumes"]}  # fmt: skip
    text = given["/etc/prometheus/prometheus.yml"].read_text()
    config = tmp_path / "prometheus.yml"
    text = text.replace("headgate:7440", f"127.0.0.1:{shared_daemon.port}")
    rules = "/etc/prometheus/alerts.yaml"
    config.write_text(text.replace(rules, str(given[rules])))
    with kept_port() as port, subprocess.Popen(
        [program("prometheus", "prometheus"), f"--config.file={config}",
         f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: value_of(port, 'up{job="headgate"}') == "1", "a scrape")
            assert value_of(port, "headgate_ready") == "1"
            groups = ask(port, "GET", "/api/v1/rules").json["data"]["groups"]
            assert len(groups) == 1 and len(groups[0]["rules"]) > 20
        finally:
            process.terminate()


def value_of(port: int, query: str) -> str | None:
    """What a query gives, if there is one value."""
    with suppress(*UNANSWERED):
        answer = ask(port, "GET", f"/api/v1/query?query={quote(query)}")
        if answer.status == 200 and (found := answer.json["data"]["result"]):
            return str(found[0]["value"][1])
    return None


def test_a_daemon_with_the_files_environment_works_on_a_minio_with_its_command(
    services: dict[str, Any], tmp_path: Path
) -> None:
    environ = dict(services["headgate"]["environment"])
    endpoint = urlsplit(environ["HEADGATE_S3_ENDPOINT_URL"])
    server = services[endpoint.hostname or ""]
    bucket = urlsplit(environ["HEADGATE_STORE_URL"]).netloc

    (script,) = server["command"]
    make, serve = (shlex.split(part) for part in script.split("&&"))
    assert make == ["mkdir", "-p", f"/data/{bucket}"]
    assert serve == ["exec", "minio", "server", "--address", f":{endpoint.port}", "/data"]
    assert server["environment"]["MINIO_ROOT_USER"] == minio.ACCESS_KEY
    assert server["environment"]["MINIO_ROOT_PASSWORD"] == minio.SECRET_KEY

    data = tmp_path / "data"
    (data / bucket).mkdir(parents=True)
    with kept_port() as port:
        process = minio.start(minio.find_or_build(), data, port)
    try:
        environ["HEADGATE_S3_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        with running(tmp_path / "headgate", environ=environ) as daemon:
            assert daemon.produce("orders", {"n": 1}).status == 200
            assert daemon.status()["store"]["url"] == environ["HEADGATE_STORE_URL"]
    finally:
        minio.stop(process)
