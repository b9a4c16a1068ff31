"use strict";
// Topics, and what is in them: a click leads from a topic to its partitions and from there to its segments. The place is
// in the address (#topic=orders&partition=1), so that it can be sent to somebody. Asks for pages of /api/topics; the
// server sorts and filters, so that 20,000 partitions are as light as ten. Uses the helpers of console.js and charts.js.

const TOPICS_A_PAGE = 12, PARTITIONS_A_PAGE = 50, SEGMENTS_A_PAGE = 50, ROWS_SHOWN_MAX = 1000;
const PLACE_POLL_MS = 5000;
const TOPIC_COLUMNS = [
  ["Topic", "topic"], ["Partitions", "-partitions"], ["With a fault", "-faulty"], ["Lost", "-lost_offsets", "offsets that neither archive nor brokers have"],
  ["Not archived yet", "-lag_offsets", "offsets on the brokers"], ["Time left", "deleted_in_seconds", "until the brokers delete what is not archived, as far as this process knows"],
  ["Size", "-size_bytes", "in the archive"]];
const WORST = "worst";
let topicSort = WORST, partitionSort = WORST;
let topicsShown = TOPICS_A_PAGE, partitionsShown = PARTITIONS_A_PAGE;
let segmentsAfter = null; // the page of segments that is shown; null: the first

function placeNow() {
  const given = new URLSearchParams(location.hash.slice(1));
  const partition = given.get("partition");
  return { topic: given.get("topic"), partition: partition === null ? null : Number(partition) };
}

const pathOf = (topic, ...rest) => ["api/topics", encodeURIComponent(topic), ...rest].join("/");

function topicRow(t) {
  const tr = make("tr");
  const head = make("th");
  head.scope = "row";
  const link = make("a", "", t.topic);
  link.href = placeOf(t.topic);
  head.append(link);
  tr.append(head, cell("Partitions", count(t.partitions)), cell("With a fault", t.faulty ? count(t.faulty) : "–", t.faulty > 0),
    cell("Lost", t.lost_offsets ? count(t.lost_offsets) : "–", t.lost_offsets > 0), cell("Not archived yet", count(t.lag_offsets)),
    cell("Time left", known(t.deleted_in_seconds, (s) => rough(Math.floor(s / 60) * 60))), cell("Size", size(t.size_bytes)));
  return tr;
}

// Topics that are refused have no partitions in the archive, so their conditions name them.
function refusedRows({ archiver }) {
  const refused = archiver === null ? [] : Object.entries(archiver.refused);
  return refused.slice(0, TOPICS_A_PAGE).map(([topic, reason]) => {
    const tr = make("tr", "refused");
    const head = make("th", "", topic);
    head.scope = "row";
    const td = make("td", "alarm", `not archived: ${reason}`);
    td.colSpan = TOPIC_COLUMNS.length - 1;
    tr.append(head, td);
    return tr;
  });
}

async function drawTopics() {
  const { status } = latest;
  const namePart = $("filter").value.trim(), faulty = $("faulty").checked;
  const { items, next } = await ask("api/topics", { limit: topicsShown, sort: topicSort, name_part: namePart, faulty });
  drawHead($("topics-head"), TOPIC_COLUMNS, topicSort, (key) => { topicSort = key; pollPlace(); });
  const refused = status.archiver === null ? {} : status.archiver.refused;
  redraw($("topics"), JSON.stringify([items, refused, namePart]), () => [
    ...refusedRows(status).filter((tr) => tr.firstChild.textContent.toLowerCase().includes(namePart.toLowerCase())), ...items.map(topicRow)]);
  const { topics: total } = status.totals;
  $("more-topics").hidden = next === null || topicsShown >= ROWS_SHOWN_MAX;
  const empty = $("no-topics");
  empty.hidden = next === null && items.length > 0;
  if (items.length) setText(empty, `Showing ${count(items.length)} of ${count(total)} topics${topicSort === WORST ? ", those with a fault or a loss first" : ""}. Filter by name to find others.`);
  else setText(empty, !total ? "Nothing is archived yet." : faulty ? "No topic with a fault or a loss." : `None of ${count(total)} topics has “${namePart}” in its name.`);
}

function segmentRow(segment) {
  const tr = make("tr");
  const offsets = make("th", "", range(segment.base_offset, segment.last_offset));
  offsets.scope = "row";
  const at = new Date(segment.max_timestamp_ms);
  const time = make("td", "", segment.max_timestamp_ms < 0 || Number.isNaN(at.getTime()) ? "none" : at.toISOString().replace("T", " ").slice(0, 19));
  const state = make("td", "", segment.state.replace("COPY_SEGMENT_", "copy ").replace("DELETE_SEGMENT_", "deletion ").toLowerCase() + (segment.packed ? ", packed" : ""));
  tr.append(offsets, time, cell("Size", size(segment.size_bytes)), state, make("td", "quiet", segment.segment_id));
  return tr;
}

async function drawSegments(topic, partition) {
  const query = { limit: SEGMENTS_A_PAGE };
  if (segmentsAfter !== null) query.after = segmentsAfter;
  const { items, next } = await ask(pathOf(topic, "partitions", partition, "segments"), query);
  redraw($("segments"), JSON.stringify(items), () => items.map(segmentRow));
  $("no-segments").hidden = items.length > 0;
  const more = $("more-segments");
  more.hidden = next === null && segmentsAfter === null;
  setText(more, next === null ? "First segments" : "Next segments");
  more.dataset.after = next ?? "";
}

async function drawTimeline(path) {
  const { items } = await ask(`${path}/timeline`, { limit: ROWS_SHOWN_MAX });
  $("no-timeline").hidden = items.length > 0;
  redraw($("timeline"), JSON.stringify([path, items]), () => (items.length ? timelineNodes(items) : []));
}

async function drawPlace({ topic, partition }) {
  const path = partition === null ? pathOf(topic) : pathOf(topic, "partitions", partition);
  const crumbs = [];
  if (partition !== null) {
    const link = make("a", "", topic);
    link.href = placeOf(topic);
    crumbs.push("› ", link);
  }
  redraw($("place-path"), JSON.stringify([topic, partition]), () => crumbs);
  setText($("place-title"), partition === null ? `Topic ${topic}` : `${topic}-${partition}`);
  const query = partition === null ? { limit: partitionsShown, sort: partitionSort } : { limit: 1, after: partition - 1 };
  if (partition === 0) delete query.after;
  let found;
  try {
    found = await ask(pathOf(topic, "partitions"), query);
  } catch (error) {
    if (error.message !== "HTTP 404") throw error;
    setText($("place-title"), `There is no topic ${topic} here`);
    [$("partitions"), $("segments"), $("timeline")].forEach((node) => redraw(node, "", () => []));
    return;
  }
  const { items, next } = found;
  const visible = partition === null ? items : items.filter((p) => p.partition === partition);
  drawHead($("partitions-head"), PARTITION_COLUMNS, partitionSort, partition === null ? (key) => { partitionSort = key; pollPlace(); } : null);
  drawPartitionRows(visible, (await ask("api/conditions", { limit: ROWS_SHOWN_MAX })).items.filter((c) => c.topic === topic));
  $("more-partitions").hidden = partition !== null || next === null || partitionsShown >= ROWS_SHOWN_MAX;
  $("no-partitions").hidden = partition !== null || next === null;
  setText($("no-partitions"), `Showing ${count(visible.length)} partitions${partitionSort === WORST ? ", those with a fault or a loss first" : ""}. Sort by a column to find others.`);
  await drawTimeline(path);
  if (partition !== null) await drawSegments(topic, partition);
}

let placing = null; // the timer of the next poll
async function pollPlace() {
  clearTimeout(placing);
  const place = placeNow();
  const within = place.topic !== null;
  $("topics-part").hidden = $("tiles").hidden = within;
  $("place-part").hidden = !within;
  $("segments-part").hidden = place.partition === null;
  setText($("partitions-title"), place.partition === null ? "Partitions" : "Offsets");
  if (latest && !document.hidden) {
    // The poll of the status says it if nothing answers.
    try { await (within ? drawPlace(place) : drawTopics()); } catch { /* as above */ }
  }
  clearTimeout(placing); // a click may have begun another one meanwhile
  placing = setTimeout(pollPlace, PLACE_POLL_MS);
}

$("filter").addEventListener("input", () => { topicsShown = TOPICS_A_PAGE; pollPlace(); });
$("faulty").addEventListener("change", pollPlace);
$("more-topics").addEventListener("click", () => { topicsShown = Math.min(topicsShown + 100, ROWS_SHOWN_MAX); pollPlace(); });
$("more-partitions").addEventListener("click", () => { partitionsShown = Math.min(partitionsShown + 100, ROWS_SHOWN_MAX); pollPlace(); });
$("more-segments").addEventListener("click", () => { segmentsAfter = $("more-segments").dataset.after || null; pollPlace(); });
window.addEventListener("hashchange", () => {
  segmentsAfter = null;
  partitionsShown = PARTITIONS_A_PAGE;
  pollSoon();
  pollPlace();
  if (placeNow().topic !== null) $("place-part").scrollIntoView();
});
document.addEventListener("status", pollPlace, { once: true });
