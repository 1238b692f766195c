"""examples/compose.yaml: parsed, and its settings tried without containers.

The tests need no container engine, so no image is built or pulled. They check that the names in the
file are those of the Dockerfile and the configuration, and that a daemon with the file's
environment works on a MinIO whose data directory is laid out as the file's command does it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import strictyaml

from daemon.config import ENVIRONMENT_PREFIX, FIELDS
from tests.e2e.daemon import ROOT, running
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
        assert {mount.split(":")[0] for mount in service["volumes"]} <= set(document["volumes"])
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
