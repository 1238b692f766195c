"""npm's ``eventsource``, through nginx: a client of event streams that is not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.packages import download
from tests.e2e.processes import shard_pids, succession
from tests.examples.test_proxies import NAME, program, proxied

pytestmark = pytest.mark.slow

PACKAGE = "eventsource@4.0.0"
PROGRAM = """
const dns = require("dns"); // the proxy's name is that of this machine
dns.lookup = (name, options, done) =>
  options.all ? done(null, [{ address: "127.0.0.1", family: 4 }]) : done(null, "127.0.0.1", 4);
const [, , url, token] = process.argv;
const authorized = (to, init) =>
  fetch(to, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } });
import("eventsource").then(({ EventSource }) => {
  const stream = new EventSource(url, { fetch: authorized });
  const say = (event) => console.log(event.type, event.lastEventId, event.data ?? event.code);
  for (const name of ["position", "record", "records", "error"]) stream.addEventListener(name, say);
});
"""


def test_each_record_comes_once_though_the_shard_of_the_stream_is_killed(tmp_path: Path) -> None:
    npm = [program("npm", "npm"), "install", "--silent", "--prefix", str(tmp_path), PACKAGE]
    download(npm)
    (tmp_path / "follow.cjs").write_text(PROGRAM)
    with proxied(tmp_path, "nginx") as front:
        front.daemon.token = front.token
        shards = len(shard_pids(front.daemon))
        assert front.daemon.json("PUT", "/v0/topics/orders", {}).status == 201
        url = f"https://{NAME}:{front.port}/v0/topics/orders/watch?from_seq=0"
        command = [program("node", "nodejs"), str(tmp_path / "follow.cjs"), url, front.token]
        environ = {**os.environ, "NODE_EXTRA_CA_CERTS": f"{tmp_path}/ca.pem"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as client:
            try:
                assert client.stdout is not None
                found: list[int] = []
                for count, shard in enumerate([None, *range(shards)], 1):
                    if shard is not None:
                        with succession(front.daemon, shard) as pids:
                            os.kill(pids[0], signal.SIGKILL)
                    assert front.daemon.produce("orders", count).status == 200
                    while len(found) < count:
                        event, last_id, data = next(client.stdout).rstrip("\n").split(" ", 2)
                        if event == "record":
                            found.append(json.loads(data)["data"])
                            assert last_id.endswith(f":0={count}")
                assert found == [*range(1, shards + 2)]
            finally:
                client.terminate()
