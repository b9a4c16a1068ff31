//! rust-rdkafka as a user would write it, for the matrix of clients and brokers:
//!
//!   read BOOTSTRAP TOPIC ENDS ISOLATION       from 0 to each end of partition:end[,partition:end]
//!   group BOOTSTRAP TOPIC GROUP COUNT ISOLATION RESET LINGER_MS
//!                                             COUNT records on from what is committed, and what
//!                                             comes in the time after them; commits
//!   produce BOOTSTRAP TOPIC COUNT             idempotently, to partition 0
//!   transact BOOTSTRAP TOPIC COUNT            in a transaction that follows an aborted one
//!   times BOOTSTRAP TOPIC PARTITION TIMESTAMP the offset of that time
//!
//! A record is printed as "partition offset key value". Any error ends this with status 1.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(90);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["read", bootstrap, topic, ends, isolation] => read(bootstrap, topic, ends, isolation),
        ["group", bootstrap, topic, group, count, isolation, reset, linger] => {
            read_group(bootstrap, topic, group, count, isolation, reset, linger)
        }
        ["produce", bootstrap, topic, count] => produce(bootstrap, topic, count),
        ["transact", bootstrap, topic, count] => transact(bootstrap, topic, count),
        ["times", bootstrap, topic, partition, at] => times(bootstrap, topic, partition, at),
        _ => Err("see the head of main.rs for what it takes".into()),
    };
    if let Err(error) = outcome {
        eprintln!("rust_rdkafka: {error}");
        std::process::exit(1);
    }
}

fn consumer(bootstrap: &str, group: &str, isolation: &str, reset: &str) -> Outcome<BaseConsumer> {
    Ok(ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("isolation.level", isolation)
        .set("auto.offset.reset", reset)
        .set("enable.auto.commit", "false")
        .create()?)
}

fn write(out: &mut impl Write, message: &BorrowedMessage) -> io::Result<()> {
    write!(out, "{} {} ", message.partition(), message.offset())?;
    out.write_all(message.key().unwrap_or_default())?;
    out.write_all(b" ")?;
    out.write_all(message.payload().unwrap_or_default())?;
    out.write_all(b"\n")
}

fn read(bootstrap: &str, topic: &str, ends: &str, isolation: &str) -> Outcome<()> {
    let consumer = consumer(bootstrap, "unused", isolation, "error")?;
    let mut remaining: HashMap<i32, i64> = HashMap::new();
    let mut from = TopicPartitionList::new();
    for item in ends.split(',') {
        let (partition, end) = item.split_once(':').ok_or("ends are partition:end")?;
        remaining.insert(partition.parse()?, end.parse()?);
        from.add_partition_offset(topic, partition.parse()?, Offset::Offset(0))?;
    }
    consumer.assign(&from)?;
    let mut out = io::stdout().lock();
    let deadline = Instant::now() + PATIENCE;
    while !remaining.is_empty() {
        if Instant::now() > deadline {
            return Err(format!("not done in {PATIENCE:?}; ends not reached: {remaining:?}").into());
        }
        let Some(polled) = consumer.poll(Duration::from_millis(200)) else { continue };
        let message = polled?;
        let Some(&end) = remaining.get(&message.partition()) else { continue };
        if message.offset() < end {
            write(&mut out, &message)?;
        }
        if message.offset() >= end - 1 {
            remaining.remove(&message.partition());
        }
    }
    Ok(())
}

fn read_group(
    bootstrap: &str,
    topic: &str,
    group: &str,
    count: &str,
    isolation: &str,
    reset: &str,
    linger: &str,
) -> Outcome<()> {
    let consumer = consumer(bootstrap, group, isolation, reset)?;
    consumer.subscribe(&[topic])?;
    let (count, linger): (usize, u64) = (count.parse()?, linger.parse()?);
    let mut out = io::stdout().lock();
    let mut positions: HashMap<i32, i64> = HashMap::new();
    let mut number = 0;
    let mut deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let Some(polled) = consumer.poll(Duration::from_millis(200)) else { continue };
        let message = polled?;
        write(&mut out, &message)?;
        positions.insert(message.partition(), message.offset() + 1);
        number += 1;
        if number == count {
            deadline = Instant::now() + Duration::from_millis(linger);
        }
    }
    if number < count {
        return Err(format!("{number} of {count} records in {PATIENCE:?}; at {positions:?}").into());
    }
    let mut behind = TopicPartitionList::new();
    for (partition, offset) in positions {
        behind.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    }
    consumer.commit(&behind, CommitMode::Sync)?;
    Ok(())
}

fn producer(bootstrap: &str, setting: (&str, &str)) -> Outcome<BaseProducer> {
    let (key, value) = setting;
    Ok(ClientConfig::new().set("bootstrap.servers", bootstrap).set(key, value).create()?)
}

fn send(producer: &BaseProducer, topic: &str, key: &str, value: &str) -> Outcome<()> {
    let record = BaseRecord::to(topic).partition(0).key(key).payload(value);
    producer.send(record).map_err(|(error, _)| error)?;
    producer.poll(Duration::ZERO);
    Ok(())
}

fn send_all(producer: &BaseProducer, topic: &str, count: &str) -> Outcome<()> {
    for number in 0..count.parse::<usize>()? {
        send(producer, topic, &format!("k{number}"), &format!("v{number}"))?;
    }
    Ok(producer.flush(PATIENCE)?)
}

fn produce(bootstrap: &str, topic: &str, count: &str) -> Outcome<()> {
    send_all(&producer(bootstrap, ("enable.idempotence", "true"))?, topic, count)
}

fn transact(bootstrap: &str, topic: &str, count: &str) -> Outcome<()> {
    let id = format!("rust-{topic}");
    let producer = producer(bootstrap, ("transactional.id", &id))?;
    producer.init_transactions(PATIENCE)?;
    producer.begin_transaction()?;
    send(&producer, topic, "aborted", "aborted")?;
    producer.flush(PATIENCE)?;
    producer.abort_transaction(PATIENCE)?;
    producer.begin_transaction()?;
    send_all(&producer, topic, count)?;
    Ok(producer.commit_transaction(PATIENCE)?)
}

fn times(bootstrap: &str, topic: &str, partition: &str, at: &str) -> Outcome<()> {
    let consumer = consumer(bootstrap, "unused", "read_uncommitted", "error")?;
    let mut asked = TopicPartitionList::new();
    asked.add_partition_offset(topic, partition.parse()?, Offset::Offset(at.parse()?))?;
    let found = consumer.offsets_for_times(asked, PATIENCE)?;
    let element = &found.elements_for_topic(topic)[0];
    element.error()?;
    match element.offset() {
        Offset::Offset(offset) => println!("{offset}"),
        _ => println!("-1"),
    }
    Ok(())
}
