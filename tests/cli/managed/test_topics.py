"""``headgate topics``, against answers in the shapes of the HTTP API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands.managed.topics import topics_alter, topics_create
from ledger.types import TopicConfig
from tests.scripted import Answer, Call, refusal, run, says, scripted, state


class Topics:
    """Topics in memory, with the answers to PUT, GET and DELETE."""

    def __init__(self, *present: dict[str, Any]) -> None:
        self.states = {each["topic"]: each for each in present}

    def __call__(self, call: Call) -> Answer:
        name = call.path.rpartition("/")[2]
        if call.method == "PUT":
            known = name in self.states
            before = self.states[name]["config"] if known else {}
            self.states[name] = state(name, **before | call.body)
            return Answer(200 if known else 201, self.states[name])
        if name not in self.states:
            return refusal(404, "unknown_topic", f"there is no topic {name!r}")
        if call.method == "DELETE":
            return Answer(200, self.states.pop(name))
        return Answer(200, self.states[name])


def test_topics_ls_follows_the_cursor() -> None:
    def script(call: Call) -> Answer:
        if call.path == "/v0/topics":
            return Answer(200, {"topics": [state("a")], "next_cursor": "a"})
        return Answer(200, {"topics": [state("b", 3)], "next_cursor": None})

    with scripted(script) as server:
        listed = run(server, "topics", "ls", "-o", "json")
        table = run(server, "topics", "ls")
    assert [topic["topic"] for topic in json.loads(listed.stdout)] == ["a", "b"]
    assert [call.path for call in server.calls[:2]] == ["/v0/topics", "/v0/topics?cursor=a"]
    assert table.stdout == (
        "topic  partitions  records    bytes  highest seq  priority  band  age  recency  watchers\n"
        "a               1       10  2.0 KiB           10       250  B2      -      250         3\n"
        "b               3       30  6.0 KiB           10       250  B2      -      250         3\n"
    )


def test_topics_show_prints_settings_that_are_not_the_default_and_partitions() -> None:
    told = state(partitions=2, ttl_ms=5) | {"lagged_watchers": 1}
    with says(Answer(200, told)) as server:
        shown, body = (
            run(server, "topics", "show", "orders"),
            run(server, "topics", "show", "orders", "-o", "json"),
        )
    assert shown.stdout == (
        "topic orders\n"
        "  partitions = 2\n"
        "  ttl_ms = 5\n"
        "  priority 250, band B2, age -, recency 250, watchers 3 (1 lagged)\n"
        "\n"
        "partition  earliest seq  head seq  next seq  records    bytes\n"
        "        0             1        10        11       10  2.0 KiB\n"
        "        1             1        10        11       10  2.0 KiB\n"
    )
    assert json.loads(body.stdout) == told


def test_each_setting_of_a_topic_is_an_option_of_create_and_alter() -> None:
    for command in (topics_create, topics_alter):
        missing = {*TopicConfig.__struct_fields__} - {each.name for each in command.params}
        assert not missing, f"{command.name} has no option for {missing}"
    with scripted(Topics(state("t"))) as server:
        alter = ("topics", "alter", "t", "--retain-for-subscriptions")
        assert run(server, *alter, "1GiB").exit_code == 0
        assert run(server, *alter, "none").exit_code == 0
        put = [call.body for call in server.calls if call.method == "PUT"]
    assert put == [
        {"retain_for_subscriptions": 1 << 30}, {"retain_for_subscriptions": None}
    ]  # fmt: skip


def test_topics_create_puts_only_what_was_given() -> None:
    with scripted(Topics()) as server:
        result = run(
            server, "topics", "create", "t", "--partitions", "4", "--column", "a:b:long",
            "--no-auto-priority", "--cap-records", "9", "-o", "json",
        )  # fmt: skip
    assert result.exit_code == 0
    put = {"partitions": 4, "columns": {"a:b": "long"}, "auto_priority": False, "cap_records": 9}
    assert Call("PUT", "/v0/topics/t", put) in server.calls
    assert json.loads(result.stdout)["config"]["partitions"] == 4


def test_creating_a_topic_again_is_fine_and_with_other_settings_is_not() -> None:
    with scripted(Topics(state("t", 4))) as server:
        same = run(server, "topics", "create", "t", "--partitions", "4")
        other = run(server, "topics", "create", "t", "--partitions", "5")
    assert same.exit_code == 0
    assert other.exit_code == 1
    assert "partitions is 4, not 5" in other.stderr and "topics alter t" in other.stderr
    assert not [call for call in server.calls if call.method == "PUT"]


def test_topics_alter_changes_what_was_given_and_keeps_the_rest() -> None:
    with scripted(Topics(state("t", 2, ttl_ms=5))) as server:
        result = run(server, "topics", "alter", "t", "--partitions", "3", "--ttl-ms", "none")
    assert result.exit_code == 0
    (put,) = [call.body for call in server.calls if call.method == "PUT"]
    assert put == {"partitions": 3, "ttl_ms": None}


def test_altering_deleting_and_showing_a_topic_that_is_not_there_is_1() -> None:
    with scripted(Topics()) as server:
        for command in (["alter", "t", "--lossy"], ["delete", "t"], ["show", "t"]):
            result = run(server, "topics", *command)
            assert (result.exit_code, result.stdout) == (1, "")
            assert "there is no topic 't'" in result.stderr


def test_topics_delete_does_not_ask_a_script() -> None:
    with scripted(Topics(state("t"))) as server:
        assert run(server, "topics", "delete", "t").exit_code == 0


def test_topics_delete_forces_only_what_is_asked_for() -> None:
    with says(Answer(200, {"topic": "t"})) as server:
        assert run(server, "topics", "delete", "t", "--force").exit_code == 0
        assert server.calls == [Call("DELETE", "/v0/topics/t?force=true", None)]


def test_secrets_of_hooks_come_from_a_file_or_stdin_and_no_message_shows_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secrets"
    file.write_text("first secret\n\n  second  \n")
    present = {"scheme": "github", "header": "X-Signature", "tolerance_s": 300, "secrets_id": "7"}
    topics = Topics(state("t"), state("signed", hook=present))

    def script(call: Call) -> Answer:
        answer = topics(call)
        topics.states["t"]["config"]["hook"] = None  # the daemon shows no secrets
        return answer

    with scripted(script) as server:
        alter = ("topics", "alter", "t", "--hook")
        assert run(server, *alter, "github", "--hook-secrets", str(file)).exit_code == 0
        more = ("--hook-header", "X-Sum", "--hook-tolerance", "1m")
        assert run(server, *alter, "hmac", "--hook-secrets", "-", *more, stdin="s\n").exit_code == 0
        assert run(server, *alter, "none").exit_code == 0
        put = [call.body for call in server.calls if call.method == "PUT"]
        assert put == [
            {"hook": {"scheme": "github", "secrets": ["first secret", "second"]}},
            {"hook": {"scheme": "hmac", "secrets": ["s"], "header": "X-Sum", "tolerance_s": 60}},
            {"hook": None},
        ]
        # A topic that exists: what can be seen of the settings is compared, and secrets cannot.
        create = ("topics", "create", "signed", "--hook-secrets", str(file), "--hook")
        same = run(server, *create, "github")
        assert same.exit_code == 1 and "nothing was changed" in same.stderr
        assert "topics alter signed" in same.stderr
        other = run(server, *create, "stripe")
        assert other.exit_code == 1 and "github" in other.stderr and "stripe" in other.stderr
        assert "secret" not in other.stderr
        for wrong, said in (
            (("--hook", "github"), "--hook github needs --hook-secrets FILE"),
            (("--hook-header", "X"), "need --hook SCHEME"),
            (("--hook", "none", "--hook-secrets", str(file)), "need --hook SCHEME"),
            (("--hook", "github", "--hook-secrets", "/no/such"), "cannot read /no/such"),
        ):
            result = run(server, "topics", "alter", "t", *wrong)
            assert result.exit_code == 2 and said in " ".join(result.stderr.split())
