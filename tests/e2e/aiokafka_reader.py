"""A program: `aiokafka_reader.py BOOTSTRAP TOPIC PARTITION:END[,…]` reads from 0 to the ends.

Prints `partition offset key value` per record, and the client's own complaints on stderr.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import aiokafka


async def read(bootstrap: str, topic: str, ends: dict[int, int]) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False
    )
    await consumer.start()
    try:
        tps = [aiokafka.TopicPartition(topic, partition) for partition in ends]
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        rest = sum(ends.values())
        while rest > 0:
            record = await consumer.getone()
            print(record.partition, record.offset, record.key.decode(), record.value.decode())
            rest -= 1
    finally:
        await consumer.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    bootstrap, topic, text = sys.argv[1:]
    asyncio.run(read(bootstrap, topic, {int(p): int(e) for p, e in
                                        (one.split(":") for one in text.split(","))}))  # fmt: skip
