// kafka-go as a user would write it, for the matrix of clients and brokers. With -do:
//
//	read     every partition of -ends from offset 0 up to, not including, its end offset
//	group    -count records on from what -group has committed; commits behind them
//	produce  -count records to partition 0
//	times    the offset of -timestamp in -partition
//
// A record is printed as "partition offset key value". Whatever moves the reader's position by
// itself ends this with status 1, as does any other failure.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

var (
	do        = flag.String("do", "", "read, group, produce or times")
	bootstrap = flag.String("bootstrap", "", "host:port[,host:port]")
	topic     = flag.String("topic", "", "the topic")
	ends      = flag.String("ends", "", "read: partition:end[,partition:end]")
	group     = flag.String("group", "", "group: its name")
	count     = flag.Int("count", 0, "group, produce: how many records")
	isolation = flag.String("isolation", "read_uncommitted", "read_uncommitted or read_committed")
	reset     = flag.String("reset", "error", "group: earliest, latest or error")
	linger    = flag.Duration("linger", 0, "group: how long to look for more than -count records")
	timeout   = flag.Duration("timeout", 90*time.Second, "give up after this long")
	partition = flag.Int("partition", 0, "times: which partition")
	timestamp = flag.Int64("timestamp", 0, "times: milliseconds since the epoch")
)

func main() {
	flag.Parse()
	verbs := map[string]func(context.Context) error{
		"read": read, "group": readGroup, "produce": produce, "times": offsetOfTime,
	}
	verb, known := verbs[*do]
	if !known {
		fail(fmt.Errorf("unknown -do %q", *do))
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if err := verb(ctx); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "kafka_go_client:", err)
	os.Exit(1)
}

// It is not told to a reader's caller when its position is moved: only this log has it.
func watch(format string, arguments ...any) {
	line := fmt.Sprintf(format, arguments...)
	fmt.Fprintln(os.Stderr, line)
	if strings.Contains(line, "skipping from offset") || strings.Contains(line, "passed the last") {
		os.Exit(1)
	}
}

func readerConfig() kafka.ReaderConfig {
	level := kafka.ReadUncommitted
	if *isolation == "read_committed" {
		level = kafka.ReadCommitted
	}
	start := kafka.FirstOffset
	if *reset == "latest" {
		start = kafka.LastOffset
	}
	return kafka.ReaderConfig{
		Brokers:               strings.Split(*bootstrap, ","),
		Topic:                 *topic,
		StartOffset:           start,
		IsolationLevel:        level,
		OffsetOutOfRangeError: *reset == "error",
		ErrorLogger:           kafka.LoggerFunc(watch),
	}
}

// kafka-go hands out the end of a transaction as if it were a record, with the marker's version and
// type (0 or 1) as its key.
func isMarker(message kafka.Message) bool {
	key := message.Key
	return len(key) == 4 && key[0] == 0 && key[1] == 0 && key[2] == 0 && key[3] < 2
}

func write(out *bufio.Writer, message kafka.Message) {
	fmt.Fprintf(out, "%d %d %s %s\n",
		message.Partition, message.Offset, message.Key, message.Value)
}

func read(ctx context.Context) error {
	for _, item := range strings.Split(*ends, ",") {
		left, right, found := strings.Cut(item, ":")
		number, err := strconv.Atoi(left)
		if !found || err != nil {
			return fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		end, err := strconv.ParseInt(right, 10, 64)
		if err != nil {
			return fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		if err := readPartition(ctx, number, end); err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
	}
	return nil
}

func readPartition(ctx context.Context, number int, end int64) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	config := readerConfig()
	config.Partition = number
	// Not closed: the fetch under way would be waited for, ten seconds.
	reader := kafka.NewReader(config)
	if err := reader.SetOffset(0); err != nil {
		return err
	}
	for {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if message.Offset < end && !isMarker(message) {
			write(out, message)
		}
		if message.Offset >= end-1 {
			return nil
		}
	}
}

func readGroup(ctx context.Context) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	config := readerConfig()
	config.GroupID = *group
	reader := kafka.NewReader(config)
	if *linger == 0 { // its group is left then; else see readPartition
		defer reader.Close()
	}
	var all []kafka.Message
	for number := 0; number < *count; {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("after %d records: %w", number, err)
		}
		all = append(all, message)
		if !isMarker(message) {
			write(out, message)
			number++
		}
	}
	if err := reader.CommitMessages(ctx, all...); err != nil {
		return err
	}
	if *linger == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, *linger)
	defer cancel()
	for {
		message, err := reader.FetchMessage(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if !isMarker(message) {
			write(out, message)
		}
	}
}

func produce(ctx context.Context) error {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(strings.Split(*bootstrap, ",")...),
		Topic:        *topic,
		RequiredAcks: kafka.RequireAll,
	}
	defer writer.Close()
	messages := make([]kafka.Message, *count)
	for number := range messages {
		key, value := fmt.Sprintf("k%d", number), fmt.Sprintf("v%d", number)
		messages[number] = kafka.Message{Key: []byte(key), Value: []byte(value)}
	}
	return writer.WriteMessages(ctx, messages...)
}

func offsetOfTime(ctx context.Context) error {
	client := &kafka.Client{Addr: kafka.TCP(strings.Split(*bootstrap, ",")...)}
	at := kafka.TimeOffsetOf(*partition, time.UnixMilli(*timestamp))
	answer, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{*topic: {at}},
	})
	if err != nil {
		return err
	}
	found := answer.Topics[*topic][0]
	if found.Error != nil {
		return found.Error
	}
	for offset := range found.Offsets {
		fmt.Println(offset)
		return nil
	}
	fmt.Println(-1)
	return nil
}
