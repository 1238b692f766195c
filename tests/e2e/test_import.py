"""``headgate import`` with a real daemon: what is stored, refused, and done by a second run."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner, Result

import cli
from commands.importing.reading.buckets import READ_BYTES, Buckets, Endpoint
from commands.importing.reading.problems import SourceChanged
from tests.e2e.daemon import HANG_S, ROOT, Daemon, command, wait_until
from tests.minio import Bucket
from uploader.stores.s3_reading import BucketReader, ListedObject

TOTALS = {
    "sources", "failed", "stopped", "records", "already_stored", "filtered", "invalid",
    "dead_letters", "absent", "requests", "retries", "read_bytes",
}  # fmt: skip
SOURCE = {
    "source", "state", "cursor", "position", "records", "already_stored", "filtered", "invalid",
    "dead_letters", "absent", "requests", "retries", "read_bytes", "error",
}  # fmt: skip


def imported(daemon: Daemon, *arguments: str, stdin: str | bytes | None = None) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(
        cli.headgate, ["import", *arguments], input=stdin, env={"HEADGATE_URL": daemon.url}
    )


def summary(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def data_of(daemon: Daemon, topic: str, partitions: int = 1) -> list[Any]:
    """The data of all records, sorted by their JSON."""
    found = [r["data"] for p in range(partitions) for r in daemon.read_all(topic, p)]
    return sorted(found, key=json.dumps)


def ndjson(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def test_files_of_all_kinds_are_imported_once_and_a_second_run_finds_nothing_new(
    daemon: Daemon, tmp_path: Path
) -> None:
    lines = [{"file": "plain", "n": n} for n in range(300)]
    (tmp_path / "plain.ndjson").write_bytes(ndjson(lines))
    (tmp_path / "small.gz").write_bytes(gzip.compress(b'"gz"'))
    (tmp_path / "small.zst").write_bytes(zstandard.compress(b'"zstd"\n'))
    (tmp_path / "list.json").write_bytes(b'[\n "one",\n "two"\n]\n')
    (tmp_path / "empty").write_bytes(b"")
    arguments = ["kinds", f"{tmp_path}/*", "--batch", "70", "-o", "json"]

    first = summary(imported(daemon, *arguments))
    assert set(first) == {"topic", "dead_letter_topic", "seconds", "totals", "sources"}
    assert set(first["totals"]) == TOTALS
    assert all(set(each) == SOURCE for each in first["sources"])
    assert (first["totals"]["sources"], first["totals"]["records"]) == (5, 304)
    stored = sorted([*lines, "gz", "zstd", "one", "two"], key=json.dumps)
    assert data_of(daemon, "kinds") == stored

    again = summary(imported(daemon, *arguments[:-4], "--batch", "9", "-o", "json"))
    assert (again["totals"]["records"], again["totals"]["requests"]) == (0, 0)
    with (tmp_path / "plain.ndjson").open("ab") as file:
        file.write(b'"later"\n')
    (tmp_path / "plain.ndjson").rename(tmp_path / "renamed")
    more = imported(daemon, *arguments[:-2])
    assert "1 record to kinds from 5 sources" in more.stdout
    assert data_of(daemon, "kinds") == sorted([*stored, "later"], key=json.dumps)


def test_filters_keys_and_dead_letters_pass_the_cursor_to_the_end(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.json("PUT", "/v0/topics/keyed", {"partitions": 3})
    good = [{"user": f"u{n % 7}", "level": "error" if n % 2 else "info", "n": n} for n in range(90)]
    path = tmp_path / "f"
    path.write_bytes(ndjson(good[:50]) + b"{half\n" + ndjson(good[50:]) + b"\xff\n")
    options = ["--where", "level=err*", "--key", "user", "--invalid", "bad", "--batch", "11"]

    done = summary(imported(daemon, "keyed", str(path), *options, "-o", "json"))
    (source,) = done["sources"]
    assert (source["records"], source["filtered"], source["dead_letters"]) == (45, 45, 2)
    assert source["position"] == path.stat().st_size and done["dead_letter_topic"] == "bad"
    kept = [value for value in good if value["level"] == "error"]
    assert data_of(daemon, "keyed", 3) == sorted(kept, key=json.dumps)
    for partition in range(3):
        records = daemon.read_all("keyed", partition)
        assert records and all(each["key"] == each["data"]["user"] for each in records)
        numbers = [each["data"]["n"] for each in records]
        assert numbers == sorted(numbers)
    letters = data_of(daemon, "bad")
    assert [(each["line"], each["text"]) for each in letters] == [(51, "{half"), (92, "\ufffd")]
    assert all(each["source"] == str(path) for each in letters)

    again = summary(imported(daemon, "keyed", str(path), *options, "-o", "json"))
    assert again["totals"]["records"] == again["totals"]["dead_letters"] == 0
    nothing = summary(imported(daemon, "none", str(path), "--where", "level=x", "--invalid", "drop",
                               "-o", "json"))  # fmt: skip
    assert nothing["sources"][0]["position"] == path.stat().st_size
    assert nothing["totals"]["records"] == 0 and nothing["totals"]["invalid"] == 2


def test_a_bad_line_ends_its_source_alone_and_is_passed_once_it_is_repaired(
    daemon: Daemon, tmp_path: Path
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.write_bytes(b'1\n2\n{"half": \n4\n')
    good.write_bytes(b'"good"\n')
    ended = imported(daemon, "repaired", str(bad), str(good))
    assert ended.exit_code == 1
    assert f"{bad}: line 3: is not JSON" in ended.stderr and str(good) not in ended.stderr
    assert "the same command continues where it ended" in ended.stderr
    assert data_of(daemon, "repaired") == ["good", 1, 2]
    with bad.open("r+b") as file:
        file.write(b'1\n2\n{"half":1}\n4\n')
    assert imported(daemon, "repaired", str(bad), str(good)).exit_code == 0
    assert data_of(daemon, "repaired") == ["good", 1, 2, 4, {"half": 1}]


def test_of_half_a_document_nothing_is_stored_and_of_half_a_gzip_the_whole_lines(
    daemon: Daemon, tmp_path: Path
) -> None:
    half, cut = tmp_path / "half.json", tmp_path / "cut.gz"
    half.write_bytes(b'[{"a": 1}, {"b": ')
    values = [{"n": n, "noise": os.urandom(20).hex()} for n in range(2_000)]
    packed = gzip.compress(ndjson(values))
    cut.write_bytes(packed[: len(packed) // 2])
    ended = imported(daemon, "halves", str(half), str(cut), "-o", "json")
    assert ended.exit_code == 1
    assert f"{half}: is not one JSON document" in ended.stderr
    assert "hint: the document ends too early" in ended.stderr
    assert f"{cut}: ends within its gzip data" in ended.stderr
    stored = json.loads(ended.stdout)["totals"]["records"]
    assert 0 < stored < 2_000
    assert data_of(daemon, "halves") == sorted(values[:stored], key=json.dumps)
    half.write_bytes(b'[{"a": 1}, {"b": 2}]')
    with cut.open("r+b") as file:
        file.write(packed)
    assert imported(daemon, "halves", str(half), str(cut)).exit_code == 0
    assert data_of(daemon, "halves") == sorted([*values, {"a": 1}, {"b": 2}], key=json.dumps)


def test_nothing_is_imported_if_a_source_is_not_there(daemon: Daemon, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(b"1\n")
    nowhere, pattern = tmp_path / "nowhere", f"{tmp_path}/*.gz"
    ended = imported(daemon, "absent", str(good), str(nowhere), str(tmp_path), pattern)
    assert ended.exit_code == 1 and "nothing was imported" in ended.stderr
    for name, why in ((nowhere, "does not exist"), (tmp_path, "is a directory"),
                      (pattern, "matches no file")):  # fmt: skip
        assert f"{name}: {why}" in ended.stderr
    assert daemon.get("/v0/topics/absent").status == 404


def test_a_file_that_is_not_what_it_was_is_refused_and_restart_imports_it(
    daemon: Daemon, tmp_path: Path
) -> None:
    shorter, other = tmp_path / "shorter", tmp_path / "other"
    shorter.write_bytes(ndjson(["a", *range(9)]))
    other.write_bytes(ndjson(["a", *range(600)]))
    assert imported(daemon, "changed", str(shorter), str(other)).exit_code == 0
    before = data_of(daemon, "changed")
    for path, values in ((shorter, ["a", 7]), (other, ["a", *range(500, 1_500)])):
        with path.open("r+b") as file:
            file.write(ndjson(values))
            file.truncate()
    ended = imported(daemon, "changed", str(shorter), str(other))
    assert ended.exit_code == 1 and "--restart imports it" in ended.stderr
    for path in (shorter, other):
        assert f"{path}: does not begin as it did" in ended.stderr
    assert data_of(daemon, "changed") == before
    done = summary(imported(daemon, "changed", str(shorter), "--restart", "-o", "json"))
    assert done["totals"]["records"] == 2
    done = summary(imported(daemon, "changed", str(shorter), "-o", "json"))
    assert done["totals"]["records"] == 0


def test_a_topic_that_is_created_anew_gets_everything_again(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\n2\n")
    for _ in range(2):
        assert summary(imported(daemon, "anew", str(path), "-o", "json"))["totals"]["records"] == 2
        assert daemon.json("DELETE", "/v0/topics/anew").status == 200


def test_cursors_ls_names_the_file_of_an_import_also_after_it_was_rotated(
    daemon: Daemon, tmp_path: Path
) -> None:
    def sources() -> list[tuple[str, Any]]:
        found = [(each["cursor"], each["source"]) for each in json.loads(listed("-o", "json"))]
        return [each for each in found if each[1] and str(tmp_path) in each[1]["name"]]

    def listed(*options: str) -> str:
        environ = {"HEADGATE_URL": daemon.url}
        return CliRunner().invoke(cli.headgate, ["cursors", "ls", *options], env=environ).stdout

    def imports() -> list[Any]:
        return [each for each in daemon.imports() if each["topic"] == "named"]

    path = tmp_path / "app log"
    path.write_bytes(b"1\n2\n{\n3\n")
    assert imported(daemon, "named", str(path)).exit_code == 1, "the third line is bad"
    ((cursor, told),) = sources()
    assert (told["name"], told["size_bytes"], told["lag_bytes"]) == (str(path), 8, 4)
    (line,) = (line for line in listed().splitlines() if f"  {path} " in line)
    assert line.rstrip().endswith(" 4 B")
    (behind,) = imports()
    assert 0 <= behind.pop("told_age_ms") < 3_600_000
    assert behind == {
        "topic": "named", "sources": 1, "unknown": 0, "lag_bytes": 4, "lag_records": 0,
    }  # fmt: skip

    def shown() -> list[str]:
        """By a status, which does not wait for the ledger for long."""
        status = CliRunner().invoke(cli.headgate, ["status"], env={"HEADGATE_URL": daemon.url})
        return [each for each in status.stdout.splitlines() if "named, sources 1, lag 4 B" in each]

    (line,) = wait_until(shown, "the status to tell of the import")
    assert line.startswith("imports")
    # It is repaired and lies elsewhere; its former path is a link.
    (tmp_path / "logs").mkdir()
    rotated = tmp_path / "logs" / "app log.1"
    path.rename(rotated)
    path.symlink_to(rotated)
    with open(rotated, "r+b") as file:
        file.write(b"1\n2\n4\n3\n")
    assert imported(daemon, "named", str(path)).exit_code == 0
    ((same, told),) = sources()
    assert (told["name"], told["size_bytes"], told["lag_bytes"]) == (str(rotated), 8, 0)
    assert imports() == []
    assert same == cursor and data_of(daemon, "named") == [1, 2, 3, 4]


def test_stdin_is_imported_and_leaves_no_cursor(daemon: Daemon) -> None:
    before = daemon.get("/v0/cursors?limit=1000").json["cursors"]
    piped = subprocess.run(
        command("import", "piped", "-", "-o", "json", "--invalid", "piped-bad"),
        input=b'1\n{\n"x"', cwd=ROOT, env={**os.environ, "HEADGATE_URL": daemon.url},
        capture_output=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert piped.returncode == 0, piped.stderr
    assert json.loads(piped.stdout)["totals"]["records"] == 2
    assert data_of(daemon, "piped") == ["x", 1]
    assert [each["line"] for each in data_of(daemon, "piped-bad")] == [2]
    assert daemon.get("/v0/cursors?limit=1000").json["cursors"] == before


def test_a_record_that_the_daemon_refuses_is_reported_with_its_limit(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\n" + b'"' + b"x" * (3 << 20) + b'"\n2\n')
    ended = imported(daemon, "large", str(path), "--record-bytes", str(4 << 20))
    assert ended.exit_code == 1
    assert "too_large" in ended.stderr and "--record-bytes" in ended.stderr
    kept = imported(daemon, "large", str(path), "--invalid", "drop")
    assert kept.exit_code == 0
    assert data_of(daemon, "large") == [1, 2]


def test_an_address_without_a_daemon_is_3_and_options_that_cannot_be_are_2(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\n")
    run = CliRunner().invoke
    away = run(cli.headgate, ["import", "t", str(path), "--url", "http://127.0.0.1:9",
                              "--wait", "0"])  # fmt: skip
    assert away.exit_code == 3 and "no answer from" in away.stderr
    for options in (["--where", "x"], ["--follow", "--identity", "path"], ["--invalid"]):
        assert run(cli.headgate, ["import", "t", str(path), *options]).exit_code == 2
    for sources in (["-"], ["s3://b/p", str(path)], []):
        assert run(cli.headgate, ["import", "t", *sources, "--follow"]).exit_code == 2


def test_objects_in_s3_are_imported_once_and_a_replaced_one_is_another(
    daemon: Daemon, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    objects = {f"in/{n}.gz": gzip.compress(ndjson([f"gz {n}"] * 3)) for n in range(3)}
    objects |= {"in/list.json": b'["a", "b"]', "in/folder/": b"", "out/1": b'"not this"\n'}
    for key, body in objects.items():
        bucket.client.put_object(Bucket=bucket.bucket, Key=key, Body=body)
    options = ["--s3-endpoint", bucket.endpoint_url, "-o", "json"]
    url = f"s3://{bucket.bucket}"

    done = summary(imported(daemon, "objects", f"{url}/in/", *options))
    assert [each["source"] for each in done["sources"]] == [
        f"{url}/in/0.gz", f"{url}/in/1.gz", f"{url}/in/2.gz", f"{url}/in/list.json"
    ]  # fmt: skip
    listed = [each["cursor"] for each in daemon.get("/v0/cursors?limit=1000").json["cursors"]]
    for each in done["sources"]:
        assert each["cursor"] in listed
        assert each["cursor"].endswith(each["source"].removeprefix("s3://").replace("/", ":"))
    expected = [f"gz {n}" for n in range(3) for _ in range(3)] + ["a", "b"]
    assert data_of(daemon, "objects") == sorted(expected, key=json.dumps)
    read: list[str] = []
    read_range = BucketReader.read

    def noted(reader: BucketReader, listed: ListedObject, position: int, count: int) -> bytes:
        read.append(listed.key)
        return read_range(reader, listed, position, count)

    monkeypatch.setattr(BucketReader, "read", noted)
    again = summary(imported(daemon, "objects", f"{url}/in/", *options))
    assert (again["totals"]["records"], again["totals"]["failed"], read) == (0, 0, [])
    cursor, position = (done["sources"][3][each] for each in ("cursor", "position"))
    assert again["sources"][3] == done["sources"][3] | {
        "records": 0,
        "read_bytes": 0,
        "requests": 0,
    }
    assert daemon.json("PUT", f"/v0/cursors/{cursor}", {"positions": [{"seq": 4}]}).status == 200
    again = summary(imported(daemon, "objects", f"{url}/in/list.json", *options))
    assert again["sources"][0]["position"] == position and {*read} == {"in/list.json"}
    assert again["totals"]["records"] == 1, "what was set back is imported again"
    read.clear()
    bucket.client.put_object(Bucket=bucket.bucket, Key="in/2.gz", Body=gzip.compress(b'"other"'))
    done = summary(imported(daemon, "objects", f"{url}/in/*.gz", *options))
    assert (done["totals"]["sources"], done["totals"]["records"]) == (3, 1)
    assert {*read} == {"in/2.gz"}
    for source, why in ((f"{url}/none/", "names no object"), ("s3://", "names no bucket"),
                        ("s3://no-such-bucket-here/", "there is no bucket")):  # fmt: skip
        ended = imported(daemon, "objects", source, *options)
        assert ended.exit_code == 1 and f"{source}: " in ended.stderr and why in ended.stderr


def test_an_object_that_is_replaced_while_it_is_read_is_named(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    put = partial(bucket.client.put_object, Bucket=bucket.bucket, Key="k")
    put(Body=b"1\n" * (READ_BYTES // 2 + 10))
    buckets = Buckets(Endpoint(bucket.endpoint_url, None), threads=1)
    (source,) = buckets.sources(f"s3://{bucket.bucket}/k")
    assert len(source.read(READ_BYTES) or b"") == READ_BYTES
    put(Body=b"2\n" * (READ_BYTES // 2 + 10))
    with pytest.raises(SourceChanged, match="was replaced by another object"):
        source.read(READ_BYTES)
    buckets.close()
