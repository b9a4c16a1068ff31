"""The key order from an HDFS listing, compared with sorted keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.storage.stores.webhdfs import FileStatus, KeyOrder, list_after

NAMES = st.text(st.sampled_from("!+-.0=@A_a"), min_size=1, max_size=4)
FOLDERS = st.dictionaries(NAMES, st.booleans(), max_size=30)  # name -> whether it is a folder


def entry(name: str, is_folder: bool) -> FileStatus:
    return FileStatus(name, is_folder, 0, "", 0, 0)


def key_order(entries: list[FileStatus]) -> list[str]:
    order = KeyOrder()
    in_order = [ready for added in entries for ready in order.add(added)]
    return [ready.place for ready in [*in_order, *order.rest()]]


@given(FOLDERS)
def test_entries_come_in_the_order_of_keys(folder: dict[str, bool]) -> None:
    listed = [entry(name, folder[name]) for name in sorted(folder)]
    assert key_order(listed) == sorted(item.place for item in listed)


@given(FOLDERS, st.text(st.sampled_from("!-./0Aa"), max_size=5), st.text("-0a", max_size=2))
def test_no_wanted_entry_lies_below_where_a_listing_starts(
    folder: dict[str, bool], start_after: str, name_start: str
) -> None:
    first = list_after(start_after, name_start)
    for name, is_folder in folder.items():
        last_key = f"{name}/~" if is_folder else name
        if last_key > start_after and name.startswith(name_start):
            assert name > first


def test_a_listing_starts_near_where_it_is_wanted() -> None:
    key = "00000000000000012345-AAAAAAAAAAAAAAAAAAAAAQ.log"
    assert list_after(key, "") == "0000000000000001234"
    assert list_after("00000000000000012345.", "") == "0000000000000001234"
    assert list_after("", "orders-") == "orders"
