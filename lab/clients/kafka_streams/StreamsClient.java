import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application for the matrix of clients and brokers.
 *
 * <pre>
 * read BOOTSTRAP TOPIC APPLICATION COUNT ISOLATION RESET LINGER_MS
 *     prints COUNT records, and what comes in the time after them, as "partition offset key value"
 * copy BOOTSTRAP TOPIC APPLICATION COUNT GUARANTEE SINK
 *     writes the first COUNT records of partition 0 to the topic SINK
 * count BOOTSTRAP TOPIC APPLICATION COUNT GUARANTEE SINK
 *     counts COUNT records by the last byte of their keys: through a repartition topic, into a store
 *     with a changelog; each new count goes to the topic SINK as "byte count"
 * </pre>
 *
 * It closes the application before it ends, so that it has committed what was read. Whatever ends
 * its thread ends this with status 1.
 */
public final class StreamsClient {
    private static final long PATIENCE_S = 90;
    private static volatile Throwable failure;

    public static void main(String[] a) throws Exception {
        CountDownLatch wanted = new CountDownLatch(Integer.parseInt(a[4]));
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, a[1]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, a[3]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("streams").toString());
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> source = builder.stream(a[2]);
        long lingerMs = 0;
        if (a[0].equals("read")) {
            settings.put(StreamsConfig.consumerPrefix("isolation.level"), a[5]);
            settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), a[6]);
            lingerMs = Long.parseLong(a[7]);
            source.process(() -> new Printer(wanted));
        } else if (a[0].equals("count")) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, a[5]);
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
            source.groupBy((key, value) -> new byte[] {key[key.length - 1]})
                    .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
                    .toStream()
                    .peek((key, count) -> wanted.countDown())
                    .mapValues((key, count) -> (new String(key) + " " + count).getBytes())
                    .to(a[6]);
        } else {
            settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "none");
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, a[5]);
            source.process(() -> new First(Integer.parseInt(a[4]), wanted)).to(a[6]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(thrown -> {
            failure = thrown;
            while (wanted.getCount() > 0) {
                wanted.countDown();
            }
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        boolean inTime = wanted.await(PATIENCE_S, TimeUnit.SECONDS);
        Thread.sleep(lingerMs);
        boolean closed = streams.close(Duration.ofSeconds(30));
        System.out.flush();
        if (failure != null) {
            failure.printStackTrace();
        }
        if (!inTime) {
            System.err.println(wanted.getCount() + " of " + a[4] + " records are missing");
        }
        System.exit(failure == null && inTime && closed ? 0 : 1);
    }

    private static final class Printer extends ContextualProcessor<byte[], byte[], Void, Void> {
        private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        private final CountDownLatch wanted;

        Printer(CountDownLatch wanted) {
            this.wanted = wanted;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            RecordMetadata from = context().recordMetadata().orElseThrow();
            String key = new String(record.key(), StandardCharsets.UTF_8);
            String value = new String(record.value(), StandardCharsets.UTF_8);
            out.println(from.partition() + " " + from.offset() + " " + key + " " + value);
            wanted.countDown();
        }
    }

    private static final class First extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
        private final int count;
        private final CountDownLatch wanted;

        First(int count, CountDownLatch wanted) {
            this.count = count;
            this.wanted = wanted;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            RecordMetadata from = context().recordMetadata().orElseThrow();
            if (from.partition() == 0 && from.offset() < count) {
                context().forward(record);
                wanted.countDown();
            }
        }
    }
}
