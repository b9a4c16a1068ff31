"use strict";
// Polls /api/status every second (less often if there are very many partitions) and draws it. Inserts text with
// textContent only, never as HTML.

const POLL_MS = 1000;
const POLL_MANY_MS = 5000;
const MANY_PARTITIONS = 1000;
const ROWS_MAX = 200;
const TOPICS_MIN = 12; // more only if they have a fault, so that the table below stays near
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

function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

function banner(id, className, title, detail) {
  const node = $(id);
  node.className = `banner ${className}`;
  setText($(`${id}-title`), title);
  setText($(`${id}-detail`), detail);
}

// --- what is wrong ---------------------------------------------------------------------------------
// While the store fails, a condition says so.
function drawStore({ store, conditions }) {
  const fails = conditions.some((c) => ["store_failing", "archive_listing_failing"].includes(c.kind));
  $("store").hidden = fails;
  if (store.up === null) banner("store", "", "The store has not been asked yet", store.url);
  else banner("store", "good", "The store answers", store.url);
}

function drawMissing(missing) {
  $("missing").hidden = missing.length === 0;
  setText($("missing"), `Not ready yet: ${missing.join(", ")}`);
}

// In steps, so that a screen reader does not read it out each second.
const rough = (seconds) => span(seconds).replace(/ 0 (s|min|h)$/, "");
const past = (seconds) => rough(Math.floor(seconds / (seconds < 60 ? 5 : 60)) * (seconds < 60 ? 5 : 60));
const left = (seconds) => (seconds > 0 ? `time left: ${rough(Math.ceil(seconds / 60) * 60)}` : "no time left");

// A line for each kind on which somebody has to act: the worst condition, how many more there are, what to do.
function drawConditions({ conditions, condition_counts: numbers }) {
  const node = $("conditions");
  const first = new Map();
  conditions.filter((c) => c.waits).forEach((c) => { if (!first.has(c.kind)) first.set(c.kind, c); });
  const lines = [...first.values()].map((c) => ({
    className: `banner ${c.level === "error" ? "bad" : "warn"}`,
    what: c.what + (numbers[c.kind] > 1 ? ` (and ${count(numbers[c.kind] - 1)} more)` : ""),
    rest: [c.kind, c.since_s === null ? "" : `for ${past(c.since_s)}`, c.until_s === null ? "" : left(c.until_s),
      `to do: ${c.remedy}`].filter(Boolean).join(" · "),
  }));
  const key = JSON.stringify(lines);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...lines.map(({ className, what, rest }) => {
    const line = make("div", className);
    line.append(make("strong", "", what), " ", make("span", "", rest));
    return line;
  }));
}

// --- figures ---------------------------------------------------------------------------------------
function rate(now, before, pick) {
  if (!before || now.at <= before.at) return null;
  const delta = pick(now.status) - pick(before.status);
  return delta < 0 ? null : (delta * 1000) / (now.at - before.at);
}

const perSecond = (value) => (value === null ? "–" : `${size(value)}/s`);

function archiverTile(archiver) {
  if (!archiver) return ["Archiver", "–", "this process archives nothing"];
  const { leadership, state, leads, follows, members, error, refused } = archiver;
  const others = members === null ? "" : `, ${count(members)} member${members === 1 ? "" : "s"}`;
  const refusals = Object.keys(refused).length;
  const alone = leadership === "sole" ? "leads all partitions; no group" : `${leadership} ${state}${others}`;
  return ["Archiver", `leads ${count(leads)} of ${count(leads + follows)}`,
    (error || alone) + (refusals ? `; ${count(refusals)} topic${refusals === 1 ? "" : "s"} refused` : ""),
    Boolean(error)];
}

// For a process that archives and does not relay.
function archiveTiles({ archiver, topics, partitions_total: total, brokers }) {
  const sum = (pick) => topics.reduce((whole, topic) => whole + pick(topic), 0);
  const faulty = sum((t) => t.faulty);
  return [
    archiverTile(archiver),
    ["Topics", count(topics.length), `${count(total)} partitions`],
    ["Partitions with a fault", count(faulty), faulty ? "they are listed first" : "none", faulty > 0],
    ["Not archived yet", count(sum((t) => t.lag_offsets)), "offsets on the brokers"],
    ["In the archive", size(sum((t) => t.size_bytes)), "all topics"],
    ["Brokers", `${count(brokers.known - brokers.away.length)} of ${count(brokers.known)}`, "answer", brokers.away.length > 0],
  ];
}

function tiles(now, before) {
  const { relay, remote_reads: remote, cache } = now.status;
  const looked = cache.hits + cache.misses;
  if (now.status.mode === "archive") return archiveTiles(now.status);
  return [
    ["Client connections", count(relay.connections), `of ${count(relay.connections_max)} at most`],
    ["Relayed to clients", perSecond(rate(now, before, (s) => s.relay.to_client_bytes)), `${size(relay.to_client_bytes)} since the start`],
    ["Relayed to brokers", perSecond(rate(now, before, (s) => s.relay.to_broker_bytes)), `${size(relay.to_broker_bytes)} since the start`],
    ["Remote reads in flight", count(remote.in_flight), `${count(remote.queued)} wait for a fetcher`],
    ["Fetches that wait", count(remote.waiting), "in the RemoteFetchPurgatory"],
    ["Read from the store", perSecond(rate(now, before, (s) => s.remote_reads.read_bytes)), `${size(remote.read_bytes)} since the start`],
    ["Catches", count(remote.catches), `${count(remote.held_stale)} made to wait, ${count(remote.passed_on)} passed on as errors`],
    ["Skips of lost offsets", count(remote.led_on), remote.led_on ? `${count(remote.offsets_skipped)} offsets skipped` : "no reader met lost offsets", remote.led_on > 0],
    ["Chunk cache", size(cache.bytes), looked ? `of ${size(cache.bytes_max)}; ${Math.round((100 * cache.hits) / looked)} % hits` : `of ${size(cache.bytes_max)}; not used yet`],
    ["Back-offs", count(remote.backoffs), "pauses after storage errors"],
    ["Corrupt chunks", count(remote.corrupt_chunks), remote.corrupt_chunks ? "run fetchproxy verify" : "none seen", remote.corrupt_chunks > 0],
    archiverTile(now.status.archiver),
  ];
}

function drawTiles(now, before) {
  const list = $("tiles");
  tiles(now, before).forEach(([name, value, note, alarm], i) => {
    let tile = list.children[i];
    if (!tile) {
      tile = make("div");
      tile.append(make("dt", "", name), make("dd"), make("dd"));
      list.append(tile);
    }
    tile.className = alarm ? "alarm" : "";
    setText(tile.children[1], value);
    setText(tile.children[2], note);
  });
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

function row(p) {
  const tr = make("tr");
  const head = make("th");
  head.scope = "row";
  const name = `${p.topic}-${p.partition}`;
  if (latest.status.shows_records && p.archived.length) {
    const button = make("button", "link", name);
    button.dataset.topic = p.topic;
    button.dataset.partition = p.partition;
    button.title = "show its archived records";
    head.append(button);
  } else head.append(name);
  if (p.role === "follower") head.append(" ", make("small", "quiet", "follower"));
  if (p.copy_seconds !== null) head.append(" ", make("small", "quiet", "copying"));
  const offsets = make("td", "wide");
  offsets.append(bar(p));
  const all = p.archived.length ? range(p.archived[0].first, p.archived.at(-1).last) : "nothing yet";
  const local = p.log_start_offset === null || p.log_end_offset === null
    ? "–" : range(p.log_start_offset, p.log_end_offset - 1);
  tr.append(head, offsets, cell("Archived", all), cell("On the brokers", local),
    cell("Lag", known(p.lag_offsets, count)),
    cell("Margin", known(p.margin_offsets, count), p.margin_offsets !== null && p.margin_offsets < 0),
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
  td.colSpan = 8;
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

function topicLine(t) {
  const li = make("li", t.faulty ? "alarm" : "");
  const faulty = t.faulty ? `, ${count(t.faulty)} with a fault` : "";
  li.append(make("strong", "", t.topic),
    ` ${count(t.partitions)} partition${t.partitions === 1 ? "" : "s"}${faulty}; lag ${count(t.lag_offsets)}; ${size(t.size_bytes)}`);
  return li;
}

function drawTopics(topics) {
  const list = $("topics");
  const key = JSON.stringify(topics);
  $("topics-part").hidden = topics.length < 2 && !topics.some((t) => t.partitions > ROWS_MAX);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const shown = Math.min(Math.max(topics.filter((t) => t.faulty).length, TOPICS_MIN), ROWS_MAX);
  const rest = topics.slice(shown);
  const faulty = rest.filter((t) => t.faulty).length;
  list.replaceChildren(...topics.slice(0, shown).map(topicLine));
  const which = faulty ? `${count(faulty)} of them with a fault` : "without a fault";
  if (rest.length) list.append(make("li", "quiet", `${count(rest.length)} more topics, ${which}`));
}

function drawPartitions({ partitions, conditions, partitions_total: total, partitions_matching: matching }) {
  const wanted = $("filter").value.trim().toLowerCase();
  const shown = partitions;
  const told = byPlace(conditions);
  const of = (p) => [...(told.get(`${p.topic}-${p.partition}`) ?? []), ...(told.get(p.topic) ?? [])];
  const key = JSON.stringify([wanted, partitions, shown.map((p) => of(p).map((c) => c.what))]);
  const body = $("partitions");
  if (body.dataset.key !== key) {
    body.dataset.key = key;
    body.replaceChildren(...shown.flatMap((p) => [row(p), ...faults(p, of(p))]));
  }
  const empty = $("no-partitions");
  const more = matching - shown.length;
  empty.hidden = shown.length > 0 && more <= 0;
  if (!total) setText(empty, "Nothing is archived yet. Start with --archive REGEX, or run fetchproxy archive.");
  else if (!shown.length) setText(empty, `None of ${count(total)} partitions has “${wanted}” in its name.`);
  else setText(empty, `Showing ${count(shown.length)} of ${count(matching)} partitions, those with a fault first. Filter by topic to see others.`);
}

// --- clients ---------------------------------------------------------------------------------------
const recordsPerSecond = (n) => `${count(n)} records/s`;

function clientRow(client) {
  const tr = make("tr");
  const head = make("th", "", client.client_id || "(no client id)");
  head.scope = "row";
  head.append(" ", make("small", "quiet", [client.address, client.software].filter(Boolean).join(" · ")));
  tr.append(head, cell("Connections", count(client.connections)), cell("Partitions", count(client.partitions)),
    cell("Reads", known(client.records_per_s, recordsPerSecond)), cell("Bytes", perSecond(client.bytes_per_s)),
    cell("Pauses", count(client.pauses)),
    cell("Pace", client.pace_records_per_s === null ? "none" : recordsPerSecond(client.pace_records_per_s)),
    cell("Held back", `${client.held_back_s.toFixed(1)} s`));
  return tr;
}

function drawClients({ clients, clients_total: total }) {
  const body = $("clients");
  const key = JSON.stringify([clients, total]);
  if (body.dataset.key === key) return;
  body.dataset.key = key;
  $("clients-part").hidden = total === 0;
  body.replaceChildren(...clients.map(clientRow));
  const more = total - clients.length;
  $("more-clients").hidden = more <= 0;
  setText($("more-clients"), `${count(more)} more clients read less than these.`);
}

// --- events ----------------------------------------------------------------------------------------
function eventLine(event) {
  const li = make("li", event.level);
  const time = make("time", "", new Date(event.at).toLocaleTimeString([], { hour12: false }));
  time.dateTime = event.at;
  const details = Object.entries(event.details).map(([name, value]) => `${name}=${value}`).join("  ");
  li.append(time);
  if (event.level !== "info") li.append(make("span", "level", event.level));
  li.append(make("span", "name", event.event.replaceAll("_", " ") + (event.count > 1 ? ` ×${count(event.count)}` : "")),
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
  drawStore(status);
  drawMissing(status.missing);
  drawConditions(status);
  drawTiles(now, previous);
  drawTopics(status.topics);
  drawPartitions(status);
  $("records-part").hidden = !status.shows_records;
  drawClients(status);
  drawEvents(status.events);
}

function showPoll(error) {
  const poll = $("poll");
  const lost = $("lost");
  poll.className = error ? "poll lost" : "poll live";
  setText(poll, error ? "no answer" : "live");
  document.querySelector("main").classList.toggle("stale", Boolean(error && latest));
  lost.hidden = !error;
  if (error) {
    const since = lastAnswerAt ? `since ${lastAnswerAt.toLocaleTimeString()}; the page shows what was known then` : "yet";
    setText(lost, `fetchproxy has not answered ${since} (${error}).`);
    if (!latest) banner("store", "", "Nothing is known yet", "");
  }
}

let polling = null; // the timer of the next poll; null while one is under way

async function poll() {
  polling = null;
  if (!document.hidden) {
    try {
      const asked = new URLSearchParams({ rows_max: ROWS_MAX, name_part: $("filter").value.trim() });
      const response = await fetch(`api/status?${asked}`, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      const now = { at: performance.now(), status: await response.json() };
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

$("filter").addEventListener("input", () => { if (polling) { clearTimeout(polling); polling = setTimeout(poll, 200); } });
poll();
