"""The object with a partition's deletion state: its content, and its faults."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore
from metadata_contract import TP, DeleteState, deletion, now

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemotePartitionDeleteMetadata
from fetchproxy.segments.description import decode_partition_deletion, encode_partition_deletion
from fetchproxy.segments.object_keys import partition_deletion_key
from fetchproxy.storage.remote_storage import RemoteStorage

MARKED = deletion(DeleteState.DELETE_PARTITION_MARKED, at_ms=5)


def test_the_document_is_what_the_docs_say() -> None:
    assert json.loads(encode_partition_deletion(MARKED)) == {
        "version": 1,
        "topic": "orders",
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "partition": 0,
        "state": "DELETE_PARTITION_MARKED",
        "event_timestamp_ms": 5,
        "epoch": 3,
    }


@given(
    st.builds(
        RemotePartitionDeleteMetadata,
        st.just(TP),
        st.sampled_from(DeleteState),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
    )
)
def test_round_trip(delete_metadata: RemotePartitionDeleteMetadata) -> None:
    assert (
        decode_partition_deletion(encode_partition_deletion(delete_metadata), "key")
        == delete_metadata
    )


@pytest.mark.parametrize("name", sorted(json.loads(encode_partition_deletion(MARKED))))
@pytest.mark.parametrize("value", [None, [], "x", -9, 2**70])
def test_a_wrong_field_is_named(name: str, value: object) -> None:
    if name == "topic" and value == "x":
        return
    document = json.loads(encode_partition_deletion(MARKED)) | {name: value}
    with pytest.raises(CorruptSegment, match=f"^key: .*{name}|^key: metadata version"):
        decode_partition_deletion(json.dumps(document).encode(), "key")


async def test_one_that_cannot_be_read_is_no_answer() -> None:
    """It does not mean that there is no deletion, and no put may overwrite it."""
    async with MemoryObjectStore() as store:
        storage = RemoteStorage(store, "archive")
        key = partition_deletion_key("archive/", TP)
        await store.put(key, b"{")
        async with StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as manager:
            with pytest.raises(RemoteStorageError, match="delete-partition-state of orders-0"):
                await manager.partition_deletion(TP, now())
            with pytest.raises(RemoteStorageError, match="delete-partition-state of orders-0"):
                await manager.put_partition_deletion(MARKED)
        assert await store.get(key) == b"{"
