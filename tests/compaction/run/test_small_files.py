"""Small files are rewritten when a day has enough of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.run.small_files import files_to_merge, files_to_rewrite
from ledger.lake.types import LakeFile


def file(number: int, size: int, day: str = "2023-11-14", dropped: bool = False) -> LakeFile:
    path = f"s3://b/lake/t-1/data/timestamp_day={day}/run-0-{number}.parquet"
    return LakeFile(number, 1, path, size, 1, "run", 1 if dropped else None)


def numbers(paths: list[str]) -> list[int]:
    return [int(path.rpartition("-")[2].removesuffix(".parquet")) for path in paths]


def test_seven_small_files_stay_and_eight_are_rewritten() -> None:
    files = [file(n, 1000) for n in range(8)]
    assert files_to_rewrite(files[:7]) == []
    assert numbers(files_to_rewrite(files)) == list(range(8))


def test_large_and_dropped_files_and_those_of_other_days_do_not_count() -> None:
    files = [file(n, 1000) for n in range(7)]
    others = [file(7, 1000, "2023-11-15"), file(8, 32 * 2**20), file(9, 1000, dropped=True)]
    assert files_to_rewrite(files + others) == []
    assert numbers(files_to_rewrite([*files, *others, file(10, 32 * 2**20 - 1)])) == [*range(7), 10]


def test_files_whose_path_names_no_day_are_left_alone() -> None:
    files = [LakeFile(n, 1, f"s3://b/x/{n}.parquet", 1, 1, "run") for n in range(20)]
    assert files_to_rewrite(files) == []


def test_a_run_takes_the_oldest_days_and_the_smallest_files_up_to_its_bound() -> None:
    files = [file(n, 10 + n, "2023-11-15") for n in range(8)]
    files += [file(10 + n, 10 + n, "2023-11-14") for n in range(8)]
    assert numbers(files_to_rewrite(files, bytes_max=40)) == [10, 11, 12]
    # One file alone is not rewritten: it would come out as it is.
    assert files_to_rewrite(files, bytes_max=15) == []


@given(
    st.lists(st.tuples(st.integers(1, 100), st.sampled_from(["2023-01-01", "2023-01-02"]))),
    st.integers(2, 5),
    st.integers(0, 500),
)
def test_what_is_chosen_is_small_live_gathered_and_bounded(
    found: list[tuple[int, str]], gathered: int, bound: int
) -> None:
    files = [file(n, size, day) for n, (size, day) in enumerate(found)]
    chosen = files_to_rewrite(files, small_bytes=50, gathered_min=gathered, bytes_max=bound)
    by_path = {each.path: each for each in files}
    assert len(set(chosen)) == len(chosen)
    assert sum(by_path[path].size_bytes for path in chosen) <= bound
    assert all(by_path[path].size_bytes < 50 for path in chosen)
    for day in ("2023-01-01", "2023-01-02"):
        small = [each for each in files if day in each.path and each.size_bytes < 50]
        taken = [path for path in chosen if day in path]
        assert len(taken) != 1 and (not taken or len(small) >= gathered)
        if len(small) >= gathered and sum(each.size_bytes for each in files) <= bound:
            assert len(taken) == len(small)


MIB = 2**20


def sets(paths: list[list[str]]) -> list[list[int]]:
    return [numbers(some) for some in paths]


def test_files_below_the_target_are_merged_as_soon_as_they_reach_it_together() -> None:
    files = [file(n, 40 * MIB) for n in (1, 2, 3)]
    assert files_to_merge(files) == []
    assert sets(files_to_merge([*files, file(4, 8 * MIB)])) == [[1, 2, 3, 4]]
    others = [file(4, 128 * MIB), file(5, 60 * MIB, dropped=True), file(6, 90 * MIB, "2023-11-15")]
    assert files_to_merge(files + others) == []


def test_a_merge_has_a_file_of_at_most_448_mib_and_sixteen_files() -> None:
    large = [file(n, 100 * MIB) for n in range(10, 16)]
    assert sets(files_to_merge(large)) == [[10, 11, 12, 13], [14, 15]]
    assert [len(some) for some in files_to_merge([file(n, 9 * MIB) for n in range(40)])] == [16, 16]
    assert files_to_merge([file(n, MIB) for n in range(40)]) == [], "they gather first"


@given(
    st.lists(st.tuples(st.integers(1, 100), st.sampled_from(["2023-01-01", "2023-01-02"]))),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_each_merge_is_of_one_day_and_reaches_the_target_within_its_bounds(
    found: list[tuple[int, str]], count: int, bound: int
) -> None:
    files = [file(n, size, day) for n, (size, day) in enumerate(found)]
    by_path = {each.path: each for each in files}
    chosen = files_to_merge(
        files, target_bytes=50, merged_bytes_max=120, files_max=count, bytes_max=bound
    )
    paths = [path for some in chosen for path in some]
    assert len(paths) == len(set(paths))
    assert sum(by_path[path].size_bytes for path in paths) <= bound
    for some in chosen:
        sizes = [by_path[path].size_bytes for path in some]
        assert 2 <= len(some) <= count and 50 <= sum(sizes) <= 120 and max(sizes) < 50
        assert len({path.rpartition("/")[0] for path in some}) == 1
