"""Each message of groups in each version that is served, compared with kio."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema

from daemon.kafka.groups import messages
from daemon.kafka.groups.group import Joined, MemberSaid, Synced
from daemon.kafka.groups.messages import (
    CommitSaid,
    CommitsAsked,
    CommitsSaid,
    CoordinatorSaid,
    GroupShown,
    MemberShown,
)
from daemon.kafka.messages import Broker
from daemon.kafka.served import SERVED, read_request
from tests.daemon.kafka.frames import Key, array, frame, int32, text
from tests.daemon.kafka.test_messages import asked, empty, made, nested, read, versions

SESSION = timedelta(milliseconds=10_000)


@pytest.mark.parametrize(("key", "version"), versions(Key.FIND_COORDINATOR))
def test_find_coordinator(key: int, version: int) -> None:
    found = messages.read_find_coordinator(
        asked(key, version, key="g", key_type=0, coordinator_keys=("g", "h"))
    )
    assert found == (0, ["g", "h"] if version >= 4 else ["g"])
    said = [CoordinatorSaid("g", 0, Broker(1, "here", 9001)), CoordinatorSaid("h", 24, message="m")]
    if version < 4:
        said = said[:1]
    answer = read(key, version, messages.found_coordinators(empty(key, version), said))
    all_said = answer.coordinators if version >= 4 else [answer]
    assert [(c.node_id, c.host, c.port, c.error_code.value) for c in all_said] == [
        (1, "here", 9001, 0), (-1, "", -1, 24),
    ][: len(said)]  # fmt: skip


@pytest.mark.parametrize(("key", "version"), versions(Key.JOIN_GROUP))
def test_join(key: int, version: int) -> None:
    protocol = nested(load_request_schema(key, version), "protocols")
    request = asked(
        key, version, group_id="g", session_timeout=SESSION, rebalance_timeout=2 * SESSION,
        member_id="m", group_instance_id="i", protocol_type="consumer", reason="why",
        protocols=(protocol(name="range", metadata=b"r"), protocol(name="x", metadata=b"")),
    )  # fmt: skip
    group, joining = messages.read_join(request)
    assert group == "g" and joining.protocols == (("range", b"r"), ("x", b""))
    assert joining[:4] == ("m", "i" if version >= 5 else None, "me", "")
    assert (joining.session_ms, joining.rebalance_ms) == (10_000, 20_000 if version else 10_000)
    assert joining.needs_known_id == (version >= 4)
    said = Joined(0, "m", 3, "consumer", "range", "l", [MemberSaid("m", "i", b"data")], True)
    answer = read(key, version, messages.joined(request.head(), said))
    (member,) = answer.members
    assert (answer.error_code.value, answer.generation_id, answer.leader) == (0, 3, "l")
    assert (answer.member_id, answer.protocol_name) == ("m", "range")
    assert (member.member_id, member.metadata) == ("m", b"data")
    if version >= 5:
        assert member.group_instance_id == "i"
    if version >= 9:
        assert answer.skip_assignment
    refused = read(key, version, messages.joined(request.head(), Joined(79, "new")))
    assert (refused.error_code.value, refused.member_id) == (79, "new")


@pytest.mark.parametrize(("key", "version"), versions(Key.SYNC_GROUP))
def test_sync(key: int, version: int) -> None:
    assignment = nested(load_request_schema(key, version), "assignments")
    request = asked(
        key, version, group_id="g", generation_id=3, member_id="m", group_instance_id="i",
        protocol_type="consumer", protocol_name="range",
        assignments=(assignment(member_id="m", assignment=b"all"),),
    )  # fmt: skip
    found = messages.read_sync(request)
    assert found[:3] == ("g", 3, "m") and found.assignments == {"m": b"all"}
    assert found.instance == ("i" if version >= 3 else None)
    assert found.protocols == (("consumer", "range") if version >= 5 else (None, None))
    answer = read(
        key, version, messages.synced(request.head(), Synced(0, "consumer", "range", b"all"))
    )
    assert (answer.error_code.value, answer.assignment) == (0, b"all")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize(("key", "version"), versions(Key.HEARTBEAT))
def test_heartbeat(key: int, version: int) -> None:
    request = asked(
        key, version, group_id="g", generation_id=3, member_id="m", group_instance_id="i"
    )
    found = messages.read_heartbeat(request)
    assert found == ("g", 3, "m", "i" if version >= 3 else None)
    answer = read(key, version, messages.only_error(request.head(), 27))
    assert answer.error_code.value == 27


@pytest.mark.parametrize(("key", "version"), versions(Key.LEAVE_GROUP))
def test_leave(key: int, version: int) -> None:
    values: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    if version >= 3:
        member = nested(load_request_schema(key, version), "members")
        values["members"] = (
            made(member, member_id="m", group_instance_id="i", reason="why"),
            made(member, member_id="n", group_instance_id=None, reason=None),
        )
    request = asked(key, version, **values)
    expected = [("m", "i"), ("n", None)] if version >= 3 else [("m", None)]
    assert messages.read_leave(request) == ("g", expected)
    answer = read(
        key, version, messages.left(request.head(), 0, [(*each, 25) for each in expected])
    )
    if version < 3:
        assert answer.error_code.value == 25
    else:
        assert [(each.member_id, each.group_instance_id, each.error_code.value)
                for each in answer.members] == [("m", "i", 25), ("n", None, 25)]  # fmt: skip


@pytest.mark.parametrize(("key", "version"), versions(Key.OFFSET_COMMIT))
def test_offset_commit(key: int, version: int) -> None:
    topic = nested(load_request_schema(key, version), "topics")
    place = nested(topic, "partitions")
    request = asked(
        key, version, group_id="g", generation_id_or_member_epoch=3, member_id="m",
        group_instance_id="i", retention_time=timedelta(milliseconds=5),
        topics=(topic(name="t", partitions=(
            made(place, partition_index=1, committed_offset=40, committed_leader_epoch=2,
                 committed_metadata="text"),
            made(place, partition_index=2, committed_offset=-1, committed_leader_epoch=-1,
                 committed_metadata=None),
        )),),
    )  # fmt: skip
    found = messages.read_offset_commit(request)
    assert found[:3] == ("g", 3, "m") and found.instance == ("i" if version >= 7 else None)
    assert found.topics == [("t", [(1, 40, "text"), (2, -1, "")])]
    answer = read(key, version, messages.committed(request.head(), [("t", [(1, 0), (2, 3)])]))
    (one,) = answer.topics
    assert one.name == "t"
    assert [(each.partition_index, each.error_code.value) for each in one.partitions] == [
        (1, 0), (2, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("key", "version"), versions(Key.OFFSET_FETCH))
def test_offset_fetch(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    values: dict[str, Any] = {"require_stable": False}
    if version >= 8:
        group = nested(schema, "groups")
        topic = nested(group, "topics")
        topics = (topic(name="t", partition_indexes=(1, 2)),)
        values["groups"] = (
            made(group, group_id="g", topics=topics, member_id=None, member_epoch=-1),
            made(group, group_id="h", topics=None, member_id="m", member_epoch=1),
        )
    else:
        topic = nested(schema, "topics")
        values |= {"group_id": "g", "topics": (topic(name="t", partition_indexes=(1, 2)),)}
    request = asked(key, version, **values)
    expected = [CommitsAsked("g", [("t", [1, 2])])]
    assert messages.read_offset_fetch(request) == (
        [*expected, CommitsAsked("h", None)] if version >= 8 else expected
    )
    said = [CommitsSaid("g", 0, [("t", [CommitSaid(1, 40, "text"), CommitSaid(2)])])]
    answer = read(key, version, messages.fetched_offsets(request.head(), said))
    (one,) = (answer.groups[0] if version >= 8 else answer).topics
    assert [
        (each.partition_index, each.committed_offset, each.metadata, each.error_code.value)
        for each in one.partitions
    ] == [(1, 40, "text", 0), (2, -1, "", 0)]


@pytest.mark.parametrize("version", range(2, 8))
def test_no_topics_stand_for_all_that_a_group_has_committed(version: int) -> None:
    request = asked(Key.OFFSET_FETCH, version, group_id="g", topics=None, require_stable=False)
    assert messages.read_offset_fetch(request) == [CommitsAsked("g", None)]


@pytest.mark.parametrize(("key", "version"), versions(Key.DESCRIBE_GROUPS))
def test_describe_groups(key: int, version: int) -> None:
    request = asked(key, version, groups=("g", "h"), include_authorized_operations=True)
    assert messages.read_groups(request) == ["g", "h"]
    member = MemberShown("m", "i", "c", "h", b"data", b"part")
    said = [GroupShown("g", 0, "Stable", "consumer", "range", [member]),
            GroupShown("h", 69, "Dead", message="none")]  # fmt: skip
    first, second = read(key, version, messages.described_groups(request.head(), said)).groups
    assert (first.group_id, first.group_state, first.protocol_data) == ("g", "Stable", "range")
    (only,) = first.members
    assert (only.member_id, only.client_id, only.client_host) == ("m", "c", "h")
    assert (only.member_metadata, only.member_assignment) == (b"data", b"part")
    assert second.error_code.value == 69


@pytest.mark.parametrize(("key", "version"), versions(Key.LIST_GROUPS))
def test_list_groups(key: int, version: int) -> None:
    request = asked(key, version, states_filter=("Stable",), types_filter=("classic",))
    found = messages.read_list_groups(request)
    assert found == (["Stable"] if version >= 4 else [], ["classic"] if version >= 5 else [])
    said = [GroupShown("g", 0, "Stable", "consumer")]
    (one,) = read(key, version, messages.listed_groups(request.head(), 0, said)).groups
    assert (one.group_id, one.protocol_type) == ("g", "consumer")
    if version >= 4:
        assert one.group_state == "Stable"


@pytest.mark.parametrize(("key", "version"), versions(Key.DELETE_GROUPS))
def test_delete_groups(key: int, version: int) -> None:
    request = asked(key, version, groups_names=("g", "h"))
    assert messages.read_groups(request) == ["g", "h"]
    said = [("g", 0), ("h", 68)]
    answer = read(key, version, messages.deleted_groups(request.head(), said))
    assert [(each.group_id, each.error_code.value) for each in answer.results] == said


@pytest.mark.parametrize(("key", "version"), versions(Key.OFFSET_DELETE))
def test_offset_delete(key: int, version: int) -> None:
    topic = nested(load_request_schema(key, version), "topics")
    place = nested(topic, "partitions")
    partitions = (place(partition_index=1), place(partition_index=2))
    request = asked(key, version, group_id="g", topics=(topic(name="t", partitions=partitions),))
    assert messages.read_offset_delete(request) == ("g", [("t", [1, 2])])
    said = [("t", [(1, 0), (2, 86)])]
    answer = read(key, version, messages.deleted_offsets(request.head(), 0, said))
    (one,) = answer.topics
    assert (answer.error_code.value, one.name) == (0, "t")
    assert [(each.partition_index, each.error_code.value) for each in one.partitions] == [
        (1, 0), (2, 86),
    ]  # fmt: skip


def test_what_is_named_twice_is_asked_for_once() -> None:
    for key in (Key.DESCRIBE_GROUPS, Key.DELETE_GROUPS):
        again = read_request(frame(key, array(text("g"), text("h"), text("g")))[4:])
        assert SERVED[key].read(again) == ["g", "h"]
    topics = array(*(text(name) + array(*map(int32, partitions)) for name, partitions in (
        ("t", [2, 1, 2]), ("u", []), ("t", [1, 3]),
    )))  # fmt: skip
    merged = [("t", [2, 1, 3]), ("u", [])]
    asked_of_one = read_request(frame(Key.OFFSET_FETCH, text("g"), topics)[4:])
    assert messages.read_offset_fetch(asked_of_one) == [CommitsAsked("g", merged)]
    group = nested(load_request_schema(Key.OFFSET_FETCH, 8), "groups")
    topic = nested(group, "topics")
    t, u = (topic(name=name, partition_indexes=(1, 2)) for name in "tu")
    asked_of_many = asked(Key.OFFSET_FETCH, 8, require_stable=False, groups=(
        group(group_id="g", topics=(t,)), group(group_id="all", topics=(t,)),
        group(group_id="g", topics=(u, t)), group(group_id="all", topics=None),
        group(group_id="all", topics=(u,)),
    ))  # fmt: skip
    assert messages.read_offset_fetch(asked_of_many) == [
        CommitsAsked("g", [("t", [1, 2]), ("u", [1, 2])]), CommitsAsked("all", None),
    ]  # fmt: skip
