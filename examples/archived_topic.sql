-- The last hour before an incident, read from the archive. If fetchproxy is installed, Spark finds the
-- format by itself: spark-sql -f examples/archived_topic.sql
CREATE TEMPORARY VIEW archived_orders
USING remotelog
OPTIONS (
  store 's3://archive/kafka',
  topics 'orders',
  startingTimestamp '1767225600000',
  endingTimestamp '1767229200000',
  includeHeaders 'true'
);

SELECT partition, offset, timestamp,
       CAST(key AS STRING) AS key,
       get_json_object(CAST(value AS STRING), '$.state') AS state,
       get(filter(headers, h -> h.key = 'trace-id'), 0).value AS trace_id
FROM archived_orders
WHERE get_json_object(CAST(value AS STRING), '$.state') = 'failed'
ORDER BY timestamp
LIMIT 100;
