"use strict";
// Polls /api/status every second (less often if there are very many partitions) and draws it. The other scripts draw
// their parts of the page with these helpers. Inserts text with textContent only, never as HTML.

const POLL_MS = 1000;
const POLL_MANY_MS = 5000;
const MANY_PARTITIONS = 1000;
const ROWS_MAX = 20; // partitions on the first page: those with a fault first
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

let previous = null; // {at, status} of the poll before, for rates
let latest = null;
let lastAnswerAt = null;

// --- words ---------------------------------------------------------------------------------------
const integer = new Intl.NumberFormat("en");
const count = (n) => integer.format(n).replaceAll(",", "\u202f");

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) { bytes /= 1024; i += 1; }
  return `${i === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}

function span(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const known = (value, word) => (value === null ? "–" : word(value));
const range = (first, last) => (last < first ? "empty" : `${count(first)} … ${count(last)}`);

// --- small DOM helpers -----------------------------------------------------------------------------
function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function makeSvg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}

function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

// Draws again only what has changed, so that nothing flickers and a selection stays.
function redraw(node, key, nodes) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...nodes());
}

async function ask(path, query = {}) {
  const parameters = new URLSearchParams(query);
  const response = await fetch(`${path}?${parameters}`, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

// --- what is wrong ---------------------------------------------------------------------------------
// In steps, so that a screen reader does not read it out each second.
const rough = (seconds) => span(seconds).replace(/ 0 (s|min|h)$/, "");
const past = (seconds) => rough(Math.floor(seconds / (seconds < 60 ? 5 : 60)) * (seconds < 60 ? 5 : 60));
const URGENT = new Set(["For readers", "Until when", "Lost", "Now"]);
const isLasting = (one) => one.since_s !== null && one.since_s >= 5;
const CLASSES = { error: "bad", warning: "warn", "on record": "note" };
const SIGNS = { error: "✖", warning: "!", "on record": "i" };

function calmWords({ store, brokers, totals, bootstrap }) {
  const away = brokers.away.length;
  return [store.up === null ? "The store has not been checked yet." : "The store responds.",
    bootstrap && brokers.known ? `${count(brokers.known - away)} of ${count(brokers.known)} brokers respond.` : "",
    totals.partitions ? `${count(totals.lag_offsets)} offsets are not archived yet.` : "Nothing is archived yet."].filter(Boolean).join(" ");
}

// What is at the top of the page: the worst problem, or that there is none.
function headlineOf(status) {
  const [worst] = status.problems;
  const until = status.outlook.says;
  if (worst && worst.level !== "on record") {
    return { className: CLASSES[worst.level], says: `${SIGNS[worst.level]} ${worst.says}`, rest: [
      ["For readers", worst.readers], ["Until when", [worst.until, until].filter(Boolean).join(" ")],
      ["Why", [worst.what, isLasting(worst) ? `(for ${past(worst.since_s)})` : ""].join(" ")], ["What to do", worst.remedy]] };
  }
  const storeKnown = status.store.up !== null;
  if (status.totals.lost_offsets) {
    return { className: "note", says: "i Nothing is wrong now, but records were lost earlier",
      rest: [["Lost", `${count(status.totals.lost_offsets)} offsets of ${partitionsText(status.totals.lossy)}; readers skip them`], ["Now", calmWords(status)]] };
  }
  return { className: storeKnown ? "good" : "", says: storeKnown ? "✔ All is well" : "Starting", rest: [["Now", calmWords(status)]] };
}

const partitionsText = (n) => `${count(n)} partition${n === 1 ? "" : "s"}`;

function drawHeadline(status) {
  const { className, says, rest } = headlineOf(status);
  const node = $("headline");
  node.className = `banner headline ${className}`;
  document.title = className === "bad" || className === "warn" ? `${says} · fetchproxy` : "fetchproxy";
  setText($("headline-says"), says);
  const lines = rest.filter(([, text]) => text);
  redraw($("headline-rest"), JSON.stringify(lines), () => lines.flatMap(([name, text]) => [make("dt", "", name), make("dd", URGENT.has(name) ? "urgent" : "", text)]));
}

// All other problems, each in two lines: in words, and what a part of the process reports.
function drawProblems({ problems }) {
  const [worst] = problems;
  const others = worst && worst.level !== "on record" ? problems.slice(1) : problems;
  const lines = others.map((one) => ({
    className: `banner other ${CLASSES[one.level]}`,
    says: `${SIGNS[one.level]} ${one.says}. ${one.readers} ${one.until}`,
    rest: [one.what + (one.count > 1 ? ` (and ${count(one.count - 1)} more)` : ""),
      isLasting(one) ? `for ${past(one.since_s)}` : "", `to do: ${one.remedy}`].filter(Boolean).join(" · "),
  }));
  redraw($("problems"), JSON.stringify(lines), () => lines.map(({ className, says, rest }) => {
    const line = make("div", className);
    line.append(make("strong", "", says), " ", make("span", "", rest));
    return line;
  }));
}

function drawMissing(missing) {
  $("missing").hidden = missing.length === 0;
  setText($("missing"), `Not ready yet: ${missing.join(", ")}`);
}

// --- figures ---------------------------------------------------------------------------------------
function rate(now, before, pick) {
  if (!before || now.at <= before.at) return null;
  const delta = pick(now.status) - pick(before.status);
  return delta < 0 ? null : (delta * 1000) / (now.at - before.at);
}

const perSecond = (value) => (value === null ? "–" : `${size(value)}/s`);

function archiverTile(archiver) {
  if (!archiver) return ["Archiver", "elsewhere", "this process archives nothing"];
  const { leadership, state, leads, follows, members, error, refused } = archiver;
  const others = members === null ? "" : `, ${count(members)} member${members === 1 ? "" : "s"}`;
  const refusals = Object.keys(refused).length;
  const alone = leadership === "sole" ? "handles all partitions; no group" : `${leadership} ${state}${others}`;
  return ["Archiver", `leads ${count(leads)} of ${count(leads + follows)}`,
    (error || alone) + (refusals ? `; ${count(refusals)} topic${refusals === 1 ? "" : "s"} refused` : ""),
    Boolean(error)];
}

function timeLeftTile({ outlook, totals }) {
  const threatened = outlook.lost_in_seconds !== null;
  if (threatened && outlook.lost_in_seconds === 0) return ["Time left", "none", "unarchived records are being deleted", true];
  if (threatened) return ["Time left", rough(Math.floor(outlook.lost_in_seconds / 60) * 60), "then unarchived records are lost", true];
  if (totals.deleted_in_seconds !== null) return ["Time left", rough(Math.floor(totals.deleted_in_seconds / 60) * 60), "until the brokers delete what is not archived"];
  return ["Time left", "–", totals.lag_offsets ? "not known" : "everything is archived"];
}

// What a lost cluster would take along: only archivers with a journal know it.
function recoveryTiles({ recovery_point: point }) {
  if (!point) return [];
  const age = point.age_ms === null ? "not known" : `${(point.age_ms / 1000).toFixed(1)} s`;
  return [["If the cluster died now", age, `and ${count(point.records)} record${point.records === 1 ? "" : "s"} would be lost`]];
}

// Is something lost, or about to be? Then the archive, then what it depends on.
function archiveTiles(status) {
  const { outlook, totals, archiver, brokers, store, bootstrap } = status;
  return [
    ["Lost for good", count(totals.lost_offsets), totals.lossy ? `offsets of ${partitionsText(totals.lossy)}` : "no offset", outlook.lost_in_seconds === 0],
    timeLeftTile({ outlook, totals }),
    ["Not archived yet", count(totals.lag_offsets), "offsets on the brokers"],
    ["With a fault", count(totals.faulty), `of ${partitionsText(totals.partitions)}`, totals.faulty > 0],
    ["In the archive", size(totals.size_bytes), `${count(totals.topics)} topic${totals.topics === 1 ? "" : "s"}`],
    archiverTile(archiver),
    ["Store", store.up === null ? "–" : store.up ? "responds" : "fails", store.url, store.up === false],
    ["Brokers", bootstrap ? `${count(brokers.known - brokers.away.length)} of ${count(brokers.known)}` : "none", bootstrap ? "respond" : "archive only", brokers.away.length > 0],
    ...recoveryTiles(status),
  ];
}

function readerTiles(now, before) {
  const { relay, remote_reads: remote, cache } = now.status;
  const looked = cache.hits + cache.misses;
  return [
    ["Client connections", count(relay.connections), `of ${count(relay.connections_max)} at most`],
    ["New records to clients", perSecond(rate(now, before, (s) => s.relay.to_client_bytes)), `${size(relay.to_client_bytes)} since the start`],
    ["Written by clients", perSecond(rate(now, before, (s) => s.relay.to_broker_bytes)), `${size(relay.to_broker_bytes)} since the start`],
    ["Read from the store", perSecond(rate(now, before, (s) => s.remote_reads.read_bytes)), `${size(remote.read_bytes)} since the start`],
    ["Reads that wait", count(remote.waiting), `${count(remote.in_flight)} reads of the store now, ${count(remote.queued)} queued`],
    ["Reads sent to the archive", count(remote.catches), `${count(remote.held_stale)} had to wait, ${count(remote.passed_on)} got an error`],
    ["Readers that skipped a loss", count(remote.led_on), remote.led_on ? `${count(remote.offsets_skipped)} lost offsets` : "none", remote.led_on > 0],
    ["Found in memory", looked ? `${Math.round((100 * cache.hits) / looked)} %` : "–", `${size(cache.bytes)} of ${size(cache.bytes_max)} in use`],
    ["Retries at the store", count(remote.backoffs), "after errors"],
    ["Damaged chunks", count(remote.corrupt_chunks), remote.corrupt_chunks ? "run fetchproxy verify" : "none seen", remote.corrupt_chunks > 0],
  ];
}

function drawTiles(now, before) {
  const tiles = archiveTiles(now.status);
  if (now.status.mode !== "archive") tiles.push(...readerTiles(now, before));
  const list = $("tiles");
  tiles.forEach(([name, value, note, alarm], i) => {
    let tile = list.children[i];
    if (!tile) {
      tile = make("div");
      tile.append(make("dt"), make("dd"), make("dd"));
      list.append(tile);
    }
    tile.className = alarm ? "alarm" : "";
    // A tile may come and go, such as that of the recovery point.
    [name, value, note].forEach((text, n) => setText(tile.children[n], text));
  });
  while (list.children.length > tiles.length) list.lastElementChild.remove();
}

// --- partitions ------------------------------------------------------------------------------------
function bar(partition) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("role", "img");
  const { archived, gaps, log_start_offset: start, log_end_offset: end } = partition;
  const edges = [...archived.flatMap((r) => [r.first, r.last + 1])];
  if (start !== null) edges.push(start);
  if (end !== null) edges.push(end);
  const low = Math.min(...edges), high = Math.max(...edges);
  const draw = (className, first, pastLast, y) => {
    const rect = document.createElementNS(SVG, "rect");
    const whole = Math.max(high - low, 1);
    // Wide enough to see, and never past the right edge.
    const width = Math.max((100 * (pastLast - first)) / whole, 0.6);
    rect.setAttribute("class", className);
    rect.setAttribute("x", `${Math.min((100 * (first - low)) / whole, 100 - width)}%`);
    rect.setAttribute("width", `${width}%`);
    rect.setAttribute("y", y);
    rect.setAttribute("height", 8);
    rect.setAttribute("rx", 1.5);
    svg.append(rect);
  };
  if (edges.length) {
    draw("track", low, Math.max(high, low + 1), 1);
    draw("track", low, Math.max(high, low + 1), 11);
    archived.forEach((r) => draw("archived", r.first, r.last + 1, 1));
    gaps.forEach((r) => draw("gap", r.first, r.last + 1, 1));
    const archiveEnd = archived.length ? archived.at(-1).last + 1 : null;
    if (archiveEnd !== null && start !== null && start > archiveEnd) draw("gap", archiveEnd, start, 1);
    if (start !== null && end !== null && end > start) draw("log", start, end, 11);
  }
  svg.setAttribute("aria-label", barLabel(partition));
  return svg;
}

function barLabel({ archived, gaps, log_start_offset: start, log_end_offset: end }) {
  const parts = [archived.length ? `archived ${archived.map((r) => range(r.first, r.last)).join(", ")}` : "nothing archived"];
  if (gaps.length) parts.push(`gap ${gaps.map((r) => range(r.first, r.last)).join(", ")}`);
  if (start !== null && end !== null) parts.push(`on the brokers ${range(start, end - 1)}`);
  return parts.join("; ");
}

function cell(name, text, alarm) {
  const node = make("td", alarm ? "number alarm" : "number", text);
  node.dataset.name = name;
  return node;
}

const placeOf = (topic, partition) => `#${new URLSearchParams(partition === undefined ? { topic } : { topic, partition })}`;

function row(p) {
  const tr = make("tr");
  const head = make("th");
  head.scope = "row";
  const link = make("a", "", `${p.topic}-${p.partition}`);
  link.href = placeOf(p.topic, p.partition);
  head.append(link);
  if (latest && latest.status.shows_records && p.archived.length) {
    const button = make("button", "link", "records");
    button.dataset.topic = p.topic;
    button.dataset.partition = p.partition;
    button.title = "show its archived records";
    head.append(" ", button);
  }
  if (p.role === "follower") head.append(" ", make("small", "quiet", "follower"));
  if (p.copy_seconds !== null) head.append(" ", make("small", "quiet", "copying"));
  const offsets = make("td", "wide");
  offsets.append(bar(p));
  const all = p.archived.length ? range(p.archived[0].first, p.archived.at(-1).last) : "nothing yet";
  const local = p.log_start_offset === null || p.log_end_offset === null
    ? "–" : range(p.log_start_offset, p.log_end_offset - 1);
  tr.append(head, offsets, cell("Archived", all), cell("On the brokers", local),
    cell("Not archived yet", known(p.lag_offsets, count)),
    cell("Margin", known(p.margin_offsets, count), p.margin_offsets !== null && p.margin_offsets < 0),
    cell("Time left", known(p.deleted_in_seconds, (s) => rough(Math.floor(s / 60) * 60))),
    cell("Size", p.segments ? size(p.size_bytes) : "–"),
    cell("Segments", p.segments ? count(p.segments) : "–"));
  return tr;
}

// The conditions of a partition, by their names in log, metrics and commands.
function faults(p, conditions) {
  const texts = conditions.map((c) => `${c.kind}: ${c.what}`);
  if (p.margin_offsets !== null && p.margin_offsets < 0 && !p.gaps.length) {
    texts.push("The brokers have deleted offsets that are not archived.");
  }
  if (!texts.length) return [];
  const tr = make("tr", "fault");
  const td = make("td");
  td.colSpan = 9;
  td.append(...texts.map((text) => make("p", "", text)));
  tr.append(td);
  return [tr];
}

// Conditions by the name of their partition or topic.
function byPlace(conditions) {
  const found = new Map();
  conditions.filter((c) => c.topic !== null).forEach((c) => {
    const name = c.partition === null ? c.topic : `${c.topic}-${c.partition}`;
    found.set(name, [...(found.get(name) ?? []), c]);
  });
  return found;
}

const PARTITION_COLUMNS = [
  ["Partition", "partition", "by number"], ["Offsets", "", "archived above, on the brokers below"], ["Archived", ""], ["On the brokers", ""],
  ["Not archived yet", "-lag_offsets", "offsets up to the high watermark that are not archived yet"],
  ["Margin", "margin_offsets", "archive end minus the brokers' log start offset; near 0, the brokers will soon delete records that are not archived; below 0, they have"],
  ["Time left", "deleted_in_seconds", "until the brokers delete what is not archived, as far as this process knows"],
  ["Size", "-size_bytes"], ["Segments", "-segments"]];

// A column with a key can be sorted by a click: `-` in front, the largest first.
function drawHead(node, columns, sort, choose) {
  redraw(node, JSON.stringify([columns, sort, Boolean(choose)]), () => {
    const tr = make("tr");
    columns.forEach(([name, key, title], i) => {
      const th = make("th", i === 0 ? "" : name === "Offsets" ? "wide" : "number");
      th.scope = "col";
      if (key && choose) {
        const button = make("button", "sort", name + (sort === key ? (key[0] === "-" ? " ▼" : " ▲") : ""));
        if (sort === key) th.setAttribute("aria-sort", key[0] === "-" ? "descending" : "ascending");
        button.addEventListener("click", () => choose(sort === key ? "worst" : key));
        th.append(button);
      } else th.append(name);
      if (title) th.title = title;
      tr.append(th);
    });
    return [tr];
  });
}

function drawPartitionRows(partitions, conditions) {
  const conditionsOf = byPlace(conditions);
  const of = (p) => [...(conditionsOf.get(`${p.topic}-${p.partition}`) ?? []), ...(conditionsOf.get(p.topic) ?? [])];
  const key = JSON.stringify([partitions, partitions.map((p) => of(p).map((c) => c.what))]);
  redraw($("partitions"), key, () => partitions.flatMap((p) => [row(p), ...faults(p, of(p))]));
}

// On the first page: a few partitions, those with a fault first. `topics.js` draws those of a topic.
function drawPartitions({ partitions, conditions, partitions_total: total, partitions_matching: matching }) {
  drawHead($("partitions-head"), PARTITION_COLUMNS, "", null);
  drawPartitionRows(partitions, conditions);
  const empty = $("no-partitions");
  const more = matching - partitions.length;
  const namePart = $("filter").value.trim();
  empty.hidden = partitions.length > 0 && more <= 0;
  $("more-partitions").hidden = true;
  if (!total) setText(empty, "Nothing is archived yet. Start with --archive REGEX, or run fetchproxy archive.");
  else if (!partitions.length) setText(empty, `None of ${count(total)} partitions has “${namePart}” in its name.`);
  else setText(empty, `Showing ${count(partitions.length)} of ${count(matching)} partitions, those with a fault first. Click a topic to see all of its partitions.`);
}

// --- events ----------------------------------------------------------------------------------------
function eventLine(event) {
  const li = make("li", event.level);
  const time = make("time", "", new Date(event.at).toLocaleTimeString([], { hour12: false }));
  time.dateTime = event.at;
  const details = Object.entries(event.details).map(([name, value]) => `${name}=${value}`).join("  ");
  li.append(time);
  if (event.level !== "info") li.append(make("span", "level", event.level));
  li.append(make("span", "name", event.event + (event.count > 1 ? ` ×${count(event.count)}` : "")),
    " ", make("span", "details", details));
  return li;
}

function drawEvents(events) {
  const list = $("events");
  const key = JSON.stringify(events);
  $("no-events").hidden = events.length > 0;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...events.map(eventLine));
}

// --- polling ---------------------------------------------------------------------------------------
function draw(now) {
  const status = now.status;
  setText($("about"), `${status.version} · ${status.mode} · brokers ${status.bootstrap}` +
    (status.listeners.length ? ` · clients ${status.listeners.join(", ")}` : "") + ` · up ${span(status.uptime_seconds)}`);
  drawHeadline(status);
  drawMissing(status.missing);
  drawProblems(status);
  drawTiles(now, previous);
  if (!location.hash.slice(1)) drawPartitions(status);
  $("records-part").hidden = !status.shows_records;
  drawEvents(status.events);
  document.dispatchEvent(new CustomEvent("status", { detail: status }));
}

function showPoll(error) {
  const poll = $("poll");
  const lost = $("lost");
  poll.className = error ? "poll lost" : "poll live";
  setText(poll, error ? "no response" : "live");
  document.querySelector("main").classList.toggle("stale", Boolean(error && latest));
  lost.hidden = !error;
  if (error) {
    const since = lastAnswerAt ? `since ${lastAnswerAt.toLocaleTimeString()}; the page shows the figures of that time` : "yet";
    setText(lost, `fetchproxy has not responded ${since} (${error}).`);
    if (!latest) setText($("headline-says"), "Nothing is known yet");
  }
}

let polling = null; // the timer of the next poll; null while one is under way

async function poll() {
  polling = null;
  if (!document.hidden) {
    try {
      const status = await ask("api/status", { rows_max: ROWS_MAX, topics_max: 0, name_part: $("filter").value.trim() });
      const now = { at: performance.now(), status };
      previous = latest;
      latest = now;
      lastAnswerAt = new Date();
      showPoll(null);
      draw(now);
    } catch (error) {
      showPoll(error.name === "TimeoutError" ? "time-out" : error.message);
    }
  }
  const many = latest && latest.status.partitions_total > MANY_PARTITIONS;
  polling = setTimeout(poll, many ? POLL_MANY_MS : POLL_MS);
}

// Asks again at once, for a changed filter.
function pollSoon() {
  if (polling) { clearTimeout(polling); polling = setTimeout(poll, 200); }
}

$("filter").addEventListener("input", pollSoon);
document.addEventListener("DOMContentLoaded", poll); // when the other scripts are there
