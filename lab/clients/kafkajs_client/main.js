// kafkajs as a user would write it, for the matrix of clients and brokers:
//   main.js group BOOTSTRAP TOPIC GROUP COUNT ISOLATION   reads COUNT records on from what is committed, commits
//   main.js follow BOOTSTRAP TOPIC GROUP COUNT RESET LINGER_MS   the same, and what comes in the time after them;
//                                                         RESET is earliest or latest
//   main.js produce BOOTSTRAP TOPIC COUNT MODE            idempotent, or transactional with an aborted one first
//   main.js times BOOTSTRAP TOPIC PARTITION TIMESTAMP     the offset of that time
// A record is printed as "partition offset key value". kafkajs cannot be told never to reset its
// position, but it logs when it has to: such a line, like any failure, ends this with status 1.
const { Kafka, logLevel } = require('kafkajs')

const DEADLINE_MS = 90000
const [verb, bootstrap, topic, ...rest] = process.argv.slice(2)

function fail(reason) {
  process.stderr.write(`kafkajs_client: ${reason}\n`)
  process.exit(1)
}

setTimeout(() => fail(`not done in ${DEADLINE_MS} ms`), DEADLINE_MS).unref()

// Leaving at once would cut off what a pipe has not taken yet.
function print(text) {
  return new Promise((resolve) => process.stdout.write(text + '\n', resolve))
}

const kafka = new Kafka({
  clientId: 'lab',
  brokers: bootstrap.split(','),
  logLevel: logLevel.INFO,
  logCreator: () => ({ log }) => {
    if (/out of range/i.test(`${log.message} ${log.error}`)) fail(log.message)
  },
})

async function group([groupId, count, isolation]) {
  await read(groupId, Number(count), isolation !== 'read_committed', false, 0)
}

async function follow([groupId, count, reset, lingerMs]) {
  await read(groupId, Number(count), true, reset === 'earliest', Number(lingerMs))
}

async function read(groupId, count, readUncommitted, fromBeginning, lingerMs) {
  const consumer = kafka.consumer({ groupId, readUncommitted })
  const next = new Map()
  const lines = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (lines.length === count && !lingerMs) return
          lines.push(`${partition} ${message.offset} ${message.key} ${message.value}`)
          next.set(partition, (BigInt(message.offset) + 1n).toString())
          if (lines.length === count) setTimeout(resolve, lingerMs)
        },
      })
      .catch(reject)
  })
  await consumer.commitOffsets(
    [...next].map(([partition, offset]) => ({ topic, partition, offset })),
  )
  await consumer.disconnect()
  await print(lines.join('\n'))
}

async function produce([countText, mode]) {
  const messages = Array.from({ length: Number(countText) }, (_, number) => ({
    partition: 0,
    key: `k${number}`,
    value: `v${number}`,
  }))
  const transactional = mode === 'transactional'
  const producer = kafka.producer({
    idempotent: true,
    maxInFlightRequests: 1,
    ...(transactional ? { transactionalId: `kafkajs-${topic}` } : {}),
  })
  await producer.connect()
  if (transactional) {
    const aborted = await producer.transaction()
    await aborted.send({ topic, messages: [{ partition: 0, key: 'aborted', value: 'aborted' }] })
    await aborted.abort()
    const committed = await producer.transaction()
    await committed.send({ topic, messages })
    await committed.commit()
  } else {
    await producer.send({ topic, messages })
  }
  await producer.disconnect()
}

async function times([partition, timestamp]) {
  const admin = kafka.admin()
  await admin.connect()
  const found = await admin.fetchTopicOffsetsByTimestamp(topic, Number(timestamp))
  await admin.disconnect()
  await print(found.find((one) => one.partition === Number(partition)).offset)
}

const verbs = { group, follow, produce, times }
verbs[verb](rest).then(
  () => process.exit(0),
  (error) => fail(error.stack),
)
