// Reads a topic from offset 0 (or -from) of each partition to the given end offsets with franz-go
// and prints one line "partition offset crc32(key) crc32(value)" per record (IEEE, 8 hex digits; a
// null key or value is "-"). Any error of the client, including OFFSET_OUT_OF_RANGE, ends it with
// status 1: it never resets its position. With -do it does what matrix.go has instead.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap := flag.String("bootstrap", "", "host:port[,host:port]")
	topic := flag.String("topic", "", "topic to read")
	ends := flag.String("ends", "", "partition:end[,partition:end]: stop before offset end of each")
	from := flag.Int64("from", 0, "first offset of each partition")
	isolation := flag.String("isolation", "read_uncommitted", "read_uncommitted or read_committed")
	timeout := flag.Duration("timeout", 60*time.Second, "give up after this long")
	do := flag.String("do", "read", "read, follow, group, produce, transact or times")
	group := flag.String("group", "", "group: its name")
	count := flag.Int("count", 0, "follow, group, produce, transact: how many records")
	reset := flag.String("reset", "none", "follow: earliest, latest or none")
	linger := flag.Duration("linger", 0, "follow: how long to look for more than -count records")
	partition := flag.Int("partition", 0, "times: which partition")
	timestamp := flag.Int64("timestamp", 0, "times: milliseconds since the epoch")
	flag.Parse()
	var err error
	switch *do {
	case "read":
		err = run(*bootstrap, *topic, *ends, *from, *isolation, *timeout)
	case "follow":
		err = follow(*bootstrap, *topic, *reset, *count, *linger, *timeout)
	case "group":
		err = readGroup(*bootstrap, *topic, *group, *count, *isolation, *timeout)
	case "produce", "transact":
		err = produce(*bootstrap, *topic, *count, *do == "transact", *timeout)
	case "times":
		err = offsetOfTime(*bootstrap, *topic, *partition, *timestamp, *timeout)
	default:
		err = fmt.Errorf("unknown -do %q", *do)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "franz_reader:", err)
		os.Exit(1)
	}
}

func run(bootstrap, topic, ends string, from int64, isolation string, timeout time.Duration) error {
	remaining, err := parseEnds(ends)
	if err != nil {
		return err
	}
	client, err := newClient(bootstrap, topic, from, isolation, remaining)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for partition, end := range remaining {
		if end <= from {
			delete(remaining, partition)
		}
	}
	for len(remaining) > 0 {
		fetches := client.PollFetches(ctx)
		for _, fetchErr := range fetches.Errors() {
			return fmt.Errorf("partition %d: %w", fetchErr.Partition, fetchErr.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			end, wanted := remaining[record.Partition]
			if !wanted {
				return
			}
			// Control and aborted records take offsets and are not handed out: the position is past
			// the end as soon as a record at or above end-1 was seen.
			if record.Attrs.IsControl() {
				if record.Offset >= end-1 {
					delete(remaining, record.Partition)
				}
				return
			}
			if record.Offset < end {
				fmt.Fprintln(out, record.Partition, record.Offset, sum(record.Key), sum(record.Value))
			}
			if record.Offset >= end-1 {
				delete(remaining, record.Partition)
			}
		})
	}
	return nil
}

func newClient(
	bootstrap, topic string, from int64, isolation string, ends map[int32]int64,
) (*kgo.Client, error) {
	level := kgo.ReadUncommitted()
	if isolation == "read_committed" {
		level = kgo.ReadCommitted()
	} else if isolation != "read_uncommitted" {
		return nil, fmt.Errorf("unknown isolation %q", isolation)
	}
	offsets := make(map[int32]kgo.Offset, len(ends))
	for partition := range ends {
		offsets[partition] = kgo.NewOffset().At(from)
	}
	return kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(level),
		// Control records show the position beyond the last record of a transaction.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
}

func parseEnds(text string) (map[int32]int64, error) {
	ends := map[int32]int64{}
	for _, item := range strings.Split(text, ",") {
		partition, end, found := strings.Cut(item, ":")
		number, err := strconv.ParseInt(partition, 10, 32)
		if !found || err != nil {
			return nil, fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		offset, err := strconv.ParseInt(end, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		ends[int32(number)] = offset
	}
	return ends, nil
}

func sum(data []byte) string {
	if data == nil {
		return "-"
	}
	return fmt.Sprintf("%08x", crc32.ChecksumIEEE(data))
}
