"""The IAM policies of examples/iam/ on a real MinIO: they suffice, and nothing less does.

A *piece* is an action on one folder of the store's prefix. Each is taken away in turn, and whoever
works with the rest must be told which it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compaction import job
from compaction.inputs.place import Place
from compaction.run.session import spark_session
from compaction.source.lease_keeper import end_batches
from daemon.upkeep.image import COPY_SUFFIX
from ledger import reads
from ledger.log.entry import image_key
from tests import iam
from tests.compaction.by_hand import compact, opened
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.lake import diff_rows
from tests.e2e.test_source_reads import produced, read
from tests.minio import Bucket

pytestmark = pytest.mark.slow

HINT = "see examples/iam/"
# An image of the ledger is due after one entry instead of hundreds.
_IMAGES_SOON = """
import sys, uploader.ownership.image as image, cli
image.ENTRIES_MAX = 1
sys.exit(cli.main())
"""
WITH_IMAGES = (sys.executable, "-c", _IMAGES_SOON, "serve")


class Piece(NamedTuple):
    """An action on the objects of a folder; the folder "" is the bucket, or the whole prefix."""

    action: str
    folder: str

    def __str__(self) -> str:
        return f"{self.action.removeprefix('s3:')} {self.folder or 'bucket'}"


def template(name: str) -> Any:
    return json.loads((ROOT / "examples" / "iam" / f"{name}.json").read_text())


def places_of(statement: Any) -> list[str]:
    """The prefixes that a statement is limited to; else its resources."""
    limited = statement.get("Condition", {}).get("StringLike", {})
    found: list[str] = limited.get("s3:prefix", statement["Resource"])
    return found


def folder_of(place: str) -> str:
    return place.partition("PREFIX/")[2].rstrip("/*")


def pieces(name: str) -> list[Piece]:
    """What a policy allows."""
    return [
        Piece(action, folder_of(place))
        for statement in template(name)["Statement"]
        for action in statement["Action"]
        for place in places_of(statement)
    ]


def policy(name: str, bucket: Bucket, less: Piece | None = None) -> iam.Policy:
    """A policy for the bucket of the test, without one piece."""
    whole = template(name)
    for statement in list(whole["Statement"]):
        if less is not None and statement["Action"] == [less.action]:
            places = places_of(statement)
            places[:] = [place for place in places if folder_of(place) != less.folder]
            if not places:
                whole["Statement"].remove(statement)
    found: iam.Policy = json.loads(
        json.dumps(whole).replace("BUCKET", bucket.bucket).replace("PREFIX", bucket.prefix)
    )
    return found


def options(user: iam.User, **settings: object) -> dict[str, Any]:
    """Options for ``running``: a daemon that is the user."""
    endpoint = {"s3_endpoint_url": user.bucket.endpoint_url}
    return {
        "store": user.bucket.url, "environ": user.environment, "settings": endpoint | settings,
    }  # fmt: skip


def become(user: iam.User, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the user."""
    for name, value in user.environment.items():
        monkeypatch.setenv(name, value)


def place_of(bucket: Bucket) -> Place:
    return Place(bucket.url, bucket.endpoint_url, bucket.region)


def refused_start(data: Path, user: iam.User) -> str:
    """What a start says that must fail."""
    daemon = Daemon(data, **options(user))
    daemon.start()
    try:
        assert daemon.process.wait(2 * HANG_S) == 1
        daemon._reader.join()
        return daemon.text
    finally:
        daemon.kill_everything()


def begun_image(data: Path, bucket: Bucket) -> None:
    """Leaves what a daemon leaves that is killed while it puts an image of its ledger."""
    key = image_key(1, 1, bytes(8))
    begun = f"{bucket.prefix}/{key}"
    bucket.client.create_multipart_upload(Bucket=bucket.bucket, Key=begun)
    name = key.removeprefix("ledger/").replace("/", ".")
    (data / "ledger" / f"ledger.db{COPY_SUFFIX}{name}").write_bytes(b"")


def uploads(bucket: Bucket) -> int:
    """Begun images of the ledger that are left."""
    key = f"{bucket.prefix}/{image_key(1, 1, bytes(8))}"
    found = bucket.client.list_multipart_uploads(Bucket=bucket.bucket, Prefix=key)
    return len(found.get("Uploads", []))


def at_the_first_start(data: Path, user: iam.User, less: iam.Policy) -> str:
    user.may(less)
    return refused_start(data, user)


def at_the_next_start(data: Path, user: iam.User, less: iam.Policy) -> str:
    with running(data, **options(user)) as daemon:
        assert daemon.produce("t", 1).status == 200
    user.may(less)
    return refused_start(data, user)


def when_records_are_stored(data: Path, user: iam.User, less: iam.Policy) -> str:
    user.may(less)
    with running(data, **options(user, ack_timeout_ms=1_000)) as daemon:
        assert daemon.produce("t", 1).status in (503, 504)
        message = daemon.alarm("store_failing")["message"]
        daemon.kill_everything()
    return str(message)


def when_old_records_are_read(data: Path, user: iam.User, less: iam.Policy) -> str:
    with running(data, **options(user)) as daemon:
        produced(daemon, "t", 3)
    user.may(less)
    with running(data, **options(user)) as daemon:
        answer = daemon.json("POST", "/v0/topics/t/diff", {"partition": 0})
        assert answer.status != 200
        return answer.body.decode() + daemon.text


def when_the_lake_is_read(data: Path, user: iam.User, less: iam.Policy) -> str:
    bucket = user.bucket
    with running(data, **options(user)) as daemon, pytest.MonkeyPatch.context() as patch:
        produced(daemon, "t", 3)
        become(iam.User(bucket, bucket.access_key, bucket.secret_key), patch)
        compact(data, "run", ["t"], place=place_of(bucket))
        with opened(data) as ledger:
            gone = [row.locator for row in ledger.read(reads.objects, 0, 1_000)]
        place_of(bucket).store().delete(gone)
    return when_old_records_are_read(data, user, less)


def when_an_image_is_named(data: Path, user: iam.User, less: iam.Policy) -> str:
    user.may(less)
    with running(data, command=WITH_IMAGES, **options(user)) as daemon:
        produced(daemon, "t", 3)
        return logged(daemon, "what the image makes needless stays until the next one")


def when_an_image_was_begun(data: Path, user: iam.User, less: iam.Policy) -> str:
    with running(data, **options(user)):
        pass
    begun_image(data, user.bucket)
    user.may(less)
    with running(data, **options(user)) as daemon:
        return logged(daemon, "parts of images that a killed daemon had begun may be left")


def logged(daemon: Daemon, begin: str) -> str:
    """The line of the log that says so."""
    return wait_until(lambda: next((line for line in list(daemon.log) if begin in line), ""), begin)


FAILS: dict[Piece, Callable[[Path, iam.User, iam.Policy], str]] = {
    Piece("s3:ListBucket", ""): at_the_first_start,
    Piece("s3:GetObject", "probe"): at_the_first_start,
    Piece("s3:GetObject", "ledger"): at_the_next_start,
    Piece("s3:GetObject", "l0"): when_old_records_are_read,
    Piece("s3:GetObject", "lake"): when_the_lake_is_read,
    Piece("s3:PutObject", "probe"): at_the_first_start,
    Piece("s3:PutObject", "ledger"): at_the_first_start,
    Piece("s3:PutObject", "l0"): when_records_are_stored,
    Piece("s3:DeleteObject", "probe"): at_the_first_start,
    Piece("s3:DeleteObject", "ledger"): when_an_image_is_named,
    Piece("s3:ListBucketMultipartUploads", ""): when_an_image_was_begun,
    Piece("s3:AbortMultipartUpload", "ledger"): when_an_image_was_begun,
}


@pytest.mark.parametrize("less", FAILS, ids=str)
def test_a_daemon_without_a_piece_of_its_policy_says_which(
    data: Path, bucket: Bucket, less: Piece
) -> None:
    user = iam.user(bucket, policy("daemon", bucket))
    said = FAILS[less](data, user, policy("daemon", bucket, less))
    assert f"the credentials need {less.action} on" in said and HINT in said
    assert bucket.bucket in said and user.secret not in said


def test_every_piece_of_the_daemons_policy_is_taken_away_once() -> None:
    assert sorted(FAILS) == sorted(pieces("daemon"))


def test_a_daemon_lives_by_its_policy(data: Path, bucket: Bucket) -> None:
    user = iam.user(bucket, policy("daemon", bucket))
    with running(data, command=WITH_IMAGES, **options(user)) as daemon:
        produced(daemon, "t", 5)
        rows = diff_rows(daemon, "t")
        logged(daemon, "images removed")
        daemon.kill_everything()
    begun_image(data, bucket)
    with running(data, **options(user)) as daemon:
        assert diff_rows(daemon, "t") == rows
        logged(daemon, "images that a killed daemon had begun are discarded")
        assert uploads(bucket) == 0
    shutil.rmtree(data)
    place = ["--data", str(data), "--store", bucket.url]
    subprocess.run(
        [sys.executable, "-m", "cli", "recover", *place, "--set",
         f"s3_endpoint_url={bucket.endpoint_url}"],
        cwd=ROOT, env={**os.environ, **user.environment}, check=True, capture_output=True,
    )  # fmt: skip
    with running(data, **options(user)) as daemon:
        assert diff_rows(daemon, "t") == rows
        assert "store_failing" not in str(daemon.status()["alarms"])


def collected(daemon: Daemon, environ: dict[str, str]) -> str:
    """What ``headgate gc`` from elsewhere says, and whether it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", "gc", "--url", daemon.url],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"{'done' if done.returncode == 0 else 'failed'}: {done.stdout}{done.stderr}"


@pytest.mark.spark
def test_a_compaction_lives_by_its_policy_and_by_nothing_less(
    data: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One session of Spark for all: it has the user's keys, and the policy changes under it."""
    user = iam.user(bucket, policy("compaction", bucket))
    become(user, monkeypatch)
    left = set(pieces("compaction"))

    def fails(less: Piece, work: Callable[[], str]) -> None:
        user.may(policy("compaction", bucket, less))
        said = work()
        assert said.startswith("failed:"), (less, said)
        assert f"the credentials need {less.action} on" in said and HINT in said, (less, said)
        left.remove(less)

    settings = {
        "s3_endpoint_url": bucket.endpoint_url, "admin_over_tcp": "true", "gc_grace_ms": 0,
        "snapshot_keep_ms": 0,
    }  # fmt: skip
    with (
        running(data, store=bucket.url, environ=bucket.environment, settings=settings) as daemon,
        spark_session("local[1]", tmp_path),
    ):

        def compacted() -> str:
            capfd.readouterr()
            done = job.main(["--url", daemon.url]) == 0
            return f"{'done' if done else 'failed'}: {''.join(capfd.readouterr())}"

        def collect() -> str:
            return collected(daemon, user.environment)

        produced(daemon, "t", 3)
        fails(Piece("s3:GetObject", "l0"), compacted)
        fails(Piece("s3:PutObject", "lake"), compacted)
        user.may(policy("compaction", bucket))
        assert compacted().startswith("done:")
        produced(daemon, "t", 3)
        fails(Piece("s3:GetObject", "lake"), compacted)
        user.may(policy("compaction", bucket))
        assert compacted().startswith("done:")
        for action in ("s3:DeleteObject", "s3:ListBucket"):
            for folder in ("l0", "lake"):
                fails(Piece(action, folder), collect)
        assert left == set()
        user.may(policy("compaction", bucket))
        assert collect().startswith("done:")


def test_a_reader_lives_by_its_policy_and_by_nothing_less(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"s3_endpoint_url": bucket.endpoint_url}
    become(iam.User(bucket, bucket.access_key, bucket.secret_key), monkeypatch)
    with running(data, store=bucket.url, settings=settings) as daemon:
        produced(daemon, "files", 3)
        compact(data, "run", ["files"], place=place_of(bucket))
        produced(daemon, "objects", 3)
        rows = {topic: diff_rows(daemon, topic) for topic in ("files", "objects")}
        reader = iam.user(bucket, policy("reader", bucket))
        become(reader, monkeypatch)
        for topic, folder in (("files", "lake"), ("objects", "l0")):
            less = Piece("s3:GetObject", folder)
            reader.may(policy("reader", bucket, less))
            with pytest.raises(Exception, match=f"the credentials need {less.action} on it"):
                read(daemon, topic)
        reader.may(policy("reader", bucket))
        for topic in rows:
            assert read(daemon, topic) == rows[topic]
        end_batches()
    assert sorted(pieces("reader")) == [Piece("s3:GetObject", "l0"), Piece("s3:GetObject", "lake")]
