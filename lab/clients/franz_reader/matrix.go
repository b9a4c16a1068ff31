// What the matrix of clients and brokers asks beyond reading: to go on where a reset policy leads, a
// group that commits and goes on, producing (idempotent, transactional) and the offset of a time.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// follow prints `count` records of partition 0 and what comes in the time after them. The policy
// `reset` says where to begin if it is earliest, else 0 does; and where to go on from an offset that
// is out of range.
func follow(
	bootstrap, topic, reset string, count int, linger, timeout time.Duration,
) error {
	policies := map[string]kgo.Offset{
		"earliest": kgo.NewOffset().AtStart(),
		"latest":   kgo.NewOffset().AtEnd(),
		"none":     kgo.NoResetOffset(),
	}
	policy, known := policies[reset]
	if !known {
		return fmt.Errorf("unknown -reset %q", reset)
	}
	start := kgo.NewOffset().At(0)
	if reset == "earliest" {
		start = policy
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}),
		kgo.ConsumeResetOffset(policy),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer func() { cancel() }()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for number := 0; ; {
		fetches := client.PollFetches(ctx)
		for _, fetchErr := range fetches.Errors() {
			if number >= count && errors.Is(fetchErr.Err, context.DeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("after %d records: %w", number, fetchErr.Err)
		}
		before := number
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Fprintln(out, record.Partition, record.Offset, sum(record.Key), sum(record.Value))
			number++
		})
		if before < count && number >= count {
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), linger)
		}
	}
}

// readGroup prints `count` records on from what the group has committed, as run does, and commits
// the positions behind them. It never resets: a group without a commit ends with an error.
func readGroup(
	bootstrap, topic, group string, count int, isolation string, timeout time.Duration,
) error {
	level := kgo.ReadUncommitted()
	if isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(level),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var read []*kgo.Record
	for len(read) < count {
		fetches := client.PollRecords(ctx, count-len(read))
		for _, fetchErr := range fetches.Errors() {
			return fmt.Errorf("partition %d: %w", fetchErr.Partition, fetchErr.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			read = append(read, record)
			fmt.Fprintln(out, record.Partition, record.Offset, sum(record.Key), sum(record.Value))
		})
	}
	return client.CommitRecords(ctx, read...)
}

// produce writes `count` records to partition 0: idempotently, or in a transaction that follows an
// aborted one.
func produce(bootstrap, topic string, count int, transactional bool, timeout time.Duration) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if transactional {
		options = append(options, kgo.TransactionalID("franz-"+topic))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	records := make([]*kgo.Record, count)
	for number := range records {
		key, value := fmt.Sprintf("k%d", number), fmt.Sprintf("v%d", number)
		records[number] = &kgo.Record{Key: []byte(key), Value: []byte(value)}
	}
	if !transactional {
		return client.ProduceSync(ctx, records...).FirstErr()
	}
	aborted := &kgo.Record{Key: []byte("aborted"), Value: []byte("aborted")}
	if err := transact(ctx, client, kgo.TryAbort, aborted); err != nil {
		return err
	}
	return transact(ctx, client, kgo.TryCommit, records...)
}

func transact(
	ctx context.Context, client *kgo.Client, end kgo.TransactionEndTry, records ...*kgo.Record,
) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, end)
}

// offsetOfTime prints the first offset of `partition` whose timestamp is at least `timestamp`.
func offsetOfTime(
	bootstrap, topic string, partition int, timestamp int64, timeout time.Duration,
) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	wanted := kmsg.NewListOffsetsRequestTopicPartition()
	wanted.Partition = int32(partition)
	wanted.Timestamp = timestamp
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic = topic
	of.Partitions = append(of.Partitions, wanted)
	request := kmsg.NewPtrListOffsetsRequest()
	request.Topics = append(request.Topics, of)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	found := answer.Topics[0].Partitions[0]
	if found.ErrorCode != 0 {
		return fmt.Errorf("ListOffsets: error %d", found.ErrorCode)
	}
	fmt.Println(found.Offset)
	return nil
}
