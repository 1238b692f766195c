"""Options of the Spark source: what is accepted, and how mistakes are reported."""

from __future__ import annotations

import pytest

from compaction.source.options import (
    ACCEPTED,
    EARLIEST,
    LATEST,
    Bound,
    Mode,
    OptionError,
    Options,
    parse,
)

BASE = {"url": "http://127.0.0.1:7440", "subscribe": "orders"}


def parsed(mode: Mode = "batch", **more: str) -> Options:
    return parse({**BASE, **more}, mode)


def refused(given: dict[str, str], mode: Mode = "batch") -> str:
    """The sentence of a refusal; an empty value takes a base option out."""
    options = {key: value for key, value in {**BASE, **given}.items() if value != ""}
    with pytest.raises(OptionError) as raised:
        parse(options, mode)
    return str(raised.value)


def test_a_batch_reads_everything_unless_told_otherwise() -> None:
    options = parsed()
    assert options.topics == ("orders",)
    assert options.starting == Bound(EARLIEST)
    assert options.ending == Bound(LATEST)
    assert options.fail_on_data_loss is True
    assert options.read_through == "store"


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    assert parsed("stream").starting == Bound(LATEST)
    assert parsed("stream", startingOffsets="earliest").starting == Bound(EARLIEST)


def test_names_of_options_regard_no_case() -> None:
    options = parse(
        {"URL": BASE["url"], "SUBSCRIBE": " a , b,a,", "failondataloss": "False",
         "minpartitions": "7", "MAXBYTESPERPARTITION": "1000", "readthrough": "DIFF"},
        "batch",
    )  # fmt: skip
    assert options.topics == ("a", "b")
    assert options.fail_on_data_loss is False
    assert (options.min_partitions, options.max_bytes_per_partition) == (7, 1000)
    assert options.read_through == "diff"


def test_a_token_is_named_by_its_file_only() -> None:
    assert parsed(tokenfile="/run/token").token_file == "/run/token"
    assert parsed().token_file == ""
    assert "must be a file" in refused({"tokenFile": "/t", "url": "", "data": "/d"})
    message = refused({"token": "hg_secret"})
    assert "'token' is not known" in message and "hg_secret" not in message


def test_offsets_are_kafkas_json() -> None:
    text = '{"orders": {"0": 23, "1": -2}}'
    assert parsed(startingOffsets=text).starting == Bound(EARLIEST, {"orders": {0: 23, 1: -2}})
    text = '{"orders": {"0": 1, "1": -1}}'
    assert parsed(endingOffsets=text).ending == Bound(LATEST, {"orders": {0: 1, 1: -1}})
    stream = parsed("stream", startingOffsets=text)
    assert stream.starting == Bound(EARLIEST, {"orders": {0: 1, 1: -1}})


def test_what_a_checkpoint_says_can_be_given_back() -> None:
    text = '{"orders": {"0": 23}, "#ids": {"orders": 7}}'
    assert parsed("stream", startingOffsets=text).starting.offsets == {"orders": {0: 23}}


def test_a_misspelt_option_is_told_the_right_name() -> None:
    message = refused({"startingOffset": "earliest"})
    assert "'startingOffset' is not known" in message
    assert "did you mean 'startingOffsets'" in message
    assert ACCEPTED["startingOffsets"] in message


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [
        ("kafka.bootstrap.servers", "'url'"),
        ("subscribePattern", "'subscribe'"),
        ("assign", "'subscribe'"),
        ("path", "'data'"),
        ("startingOffsetsByTimestamp", "'startingTimestamp'"),
    ],
)
def test_an_option_of_kafkas_that_is_not_here_names_ours(kafka: str, ours: str) -> None:
    assert f"here it is {ours}" in refused({kafka: "x"})


def test_an_unheard_of_option_is_answered_with_all_of_them() -> None:
    message = refused({"zzzzqqq": "1"})
    assert all(name in message for name in ACCEPTED)


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("url", "127.0.0.1:7440", "http://127.0.0.1:7440"),
        ("failOnDataLoss", "yes", "true or false"),
        ("minPartitions", "0", "above 0"),
        ("minPartitions", "-3", "above 0"),
        ("maxBytesPerPartition", "64MB", "above 0"),
        ("startingTimestamp", "yesterday", "epoch milliseconds"),
        ("endingTimestamp", "-1", "epoch milliseconds"),
        ("readThrough", "kafka", "store, or diff"),
        ("startingOffsets", "first", "earliest"),
        ("startingOffsets", "latest", "nothing to read"),
        ("endingOffsets", "earliest", "nothing to read"),
        ("startingOffsets", '{"orders": {"0": 0}}', "offsets begin at 1"),
        ("startingOffsets", '{"orders": {"0": -1}}', "offsets begin at 1, or -2 (earliest)"),
        ("endingOffsets", '{"orders": {"0": -2}}', "offsets begin at 1, or -1 (latest)"),
        ("startingOffsets", '{"orders": {"zero": 1}}', "not a number"),
        ("startingOffsets", '{"order": {"0": 1}}', "'order', which 'subscribe' does not"),
        ("startingOffsets", '{"orders": 1}', "Expected `object`"),
        ("maxOffsetsPerTrigger", "5", "for streams only"),
    ],
)
def test_a_bad_value_names_the_option_the_value_and_what_is_accepted(
    option: str, value: str, accepted: str
) -> None:
    message = refused({option: value})
    assert repr(option) in message
    assert value in message
    assert accepted in message


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    assert "for batch reads only" in refused({option: "1"}, "stream")


def test_offsets_and_a_time_exclude_each_other() -> None:
    message = refused({"startingOffsets": "earliest", "startingTimestamp": "5"})
    assert "exclude each other" in message
    assert "'startingOffsets'" in message


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": ""}, "topics, separated by commas"),
        ({"subscribe": " , "}, "topics, separated by commas"),
        ({"url": ""}, "neither is given"),
        ({"data": "/var/lib/headgate"}, "both are given"),
        ({"store": "s3://bucket"}, "comes from the daemon"),
        ({"url": "", "data": "/d", "store": "bucket"}, "s3://BUCKET".lower()),
        ({"url": "", "data": "/d", "readThrough": "diff"}, "store, or diff (with `url`)"),
        ({"url": "", "data": "/d", "s3_endpoint_url": "minio:9000"}, "http(s)://HOST:PORT"),
    ],
)
def test_where_the_topics_are_is_said_once(given: dict[str, str], sentence: str) -> None:
    assert sentence.lower() in refused(given).lower()
