"""``headgate serve`` hands over to the daemon."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import cli


def test_serve_hands_its_configuration_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon.process import serve

    seen = []

    def run_instead(config: Any, **options: Any) -> int:
        seen.append((config, options))
        return 7

    monkeypatch.setattr(serve, "run", run_instead)
    arguments = (
        "serve --data /srv/x --listen [::1]:9 --shards 3 --store s3://bucket/p --set records_max=5"
    )
    result = CliRunner().invoke(cli.headgate, arguments.split())
    assert result.exit_code == 7
    ((config, options),) = seen
    assert options["take_over"] is False
    assert (config.data_dir, config.listen, config.shards) == ("/srv/x", "[::1]:9", 3)
    assert (config.store_url, config.records_max) == ("s3://bucket/p", 5)
    assert config.origins["shards"] == "--shards"
