// sarama as a user would write it, for the matrix of clients and brokers. With -do:
//
//	read      every partition of -ends from offset 0 up to, not including, its end offset
//	group     -count records on from what -group has committed; commits behind them
//	produce   -count records to partition 0, idempotently
//	transact  the same in a transaction that follows an aborted one
//	times     the offset of -timestamp in -partition
//
// A record is printed as "partition offset key value". Any error that sarama tells ends this with
// status 1: an offset that is out of range too, unless -reset names where to go on.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

var (
	do        = flag.String("do", "", "read, group, produce, transact or times")
	bootstrap = flag.String("bootstrap", "", "host:port[,host:port]")
	topic     = flag.String("topic", "", "the topic")
	ends      = flag.String("ends", "", "read: partition:end[,partition:end]")
	group     = flag.String("group", "", "group: its name")
	count     = flag.Int("count", 0, "group, produce, transact: how many records")
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
		"read": read, "group": readGroup, "produce": produce, "transact": transact,
		"times": offsetOfTime,
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
	fmt.Fprintln(os.Stderr, "sarama_client:", err)
	os.Exit(1)
}

func brokers() []string { return strings.Split(*bootstrap, ",") }

func newConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.ResetInvalidOffsets = *reset != "error"
	if *reset == "latest" {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	if *isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return config
}

func write(out *bufio.Writer, message *sarama.ConsumerMessage) {
	fmt.Fprintf(out, "%d %d %s %s\n",
		message.Partition, message.Offset, message.Key, message.Value)
}

func read(ctx context.Context) error {
	consumer, err := sarama.NewConsumer(brokers(), newConfig())
	if err != nil {
		return err
	}
	defer consumer.Close()
	for _, item := range strings.Split(*ends, ",") {
		left, right, found := strings.Cut(item, ":")
		number, err := strconv.ParseInt(left, 10, 32)
		if !found || err != nil {
			return fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		end, err := strconv.ParseInt(right, 10, 64)
		if err != nil {
			return fmt.Errorf("-ends wants partition:end, got %q", item)
		}
		if err := readPartition(ctx, consumer, int32(number), end); err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
	}
	return nil
}

func readPartition(ctx context.Context, from sarama.Consumer, number int32, end int64) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	consumer, err := from.ConsumePartition(*topic, number, 0)
	if err != nil {
		return err
	}
	defer consumer.AsyncClose()
	for {
		select {
		case message := <-consumer.Messages():
			if message.Offset < end {
				write(out, message)
			}
			if message.Offset >= end-1 {
				return nil
			}
		case failure := <-consumer.Errors():
			return failure
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// counter is a group's member that stops after -count records and the time of -linger.
type counter struct {
	messages chan *sarama.ConsumerMessage
	done     chan struct{}
}

func (counter) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (counter) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (to counter) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			select {
			case to.messages <- message:
				session.MarkMessage(message, "")
			case <-to.done:
				session.Commit()
				return nil
			}
		case <-to.done:
			session.Commit()
			return nil
		case <-session.Context().Done():
			return nil
		}
	}
}

func readGroup(ctx context.Context) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	member, err := sarama.NewConsumerGroup(brokers(), *group, newConfig())
	if err != nil {
		return err
	}
	defer member.Close()
	to := counter{make(chan *sarama.ConsumerMessage), make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- member.Consume(ctx, []string{*topic}, to) }()
	var late <-chan time.Time
	for number := 0; ; {
		if number == *count && late == nil {
			late = time.After(*linger)
			if *linger == 0 {
				close(to.done)
				return <-ended
			}
		}
		select {
		case message := <-to.messages:
			write(out, message)
			number++
		case <-late:
			close(to.done)
			return <-ended
		case failure := <-member.Errors():
			return fmt.Errorf("after %d records: %w", number, failure)
		case err := <-ended:
			return fmt.Errorf("the session ended after %d records: %w", number, err)
		case <-ctx.Done():
			return fmt.Errorf("after %d records: %w", number, ctx.Err())
		}
	}
}

func records() []*sarama.ProducerMessage {
	messages := make([]*sarama.ProducerMessage, *count)
	for number := range messages {
		messages[number] = message(fmt.Sprintf("k%d", number), fmt.Sprintf("v%d", number))
	}
	return messages
}

func message(key, value string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{
		Topic: *topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
	}
}

func newProducer(transactionalID string) (sarama.SyncProducer, error) {
	config := newConfig()
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = transactionalID
	config.Net.MaxOpenRequests = 1
	return sarama.NewSyncProducer(brokers(), config)
}

func produce(context.Context) error {
	producer, err := newProducer("")
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(records())
}

func transact(context.Context) error {
	producer, err := newProducer("sarama-" + *topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	if _, _, err := producer.SendMessage(message("aborted", "aborted")); err != nil {
		return err
	}
	if err := producer.AbortTxn(); err != nil {
		return err
	}
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	if err := producer.SendMessages(records()); err != nil {
		return err
	}
	return producer.CommitTxn()
}

func offsetOfTime(context.Context) error {
	client, err := sarama.NewClient(brokers(), newConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	offset, err := client.GetOffset(*topic, int32(*partition), *timestamp)
	if err != nil {
		return err
	}
	fmt.Println(offset)
	return nil
}
