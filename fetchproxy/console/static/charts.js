"use strict";
// Charts of the last hours from /api/history, and timelines by date, as inline SVG. Inserts text with textContent only,
// never as HTML. Uses the helpers of console.js.

const WINDOW_MIN_MS = 60000; // a young process has few samples, which take the whole width
const HISTORY_POLL_MS = 15000;
const CHART_WIDTH = 160, CHART_HEIGHT = 40;
const BREAK_MS = 150000; // samples further apart are not joined: the process did not run, or was stuck
const perMinute = (n) => `${n < 10 ? n.toFixed(1) : count(Math.round(n))} a minute`;
const clients = (n) => (n < 10 ? n.toFixed(1) : count(Math.round(n)));

// name, field of a sample, words for a value; the first row is about the archive, the others about readers.
const CHARTS = [
  ["Not archived yet", "lag_offsets", count], ["Copied to the store", "archived_bytes_per_s", perSecond],
  ["Lost for good", "lost_offsets", count], ["Faults", "errors", count],
  ["History to clients", "history_bytes_per_s", perSecond], ["New records to clients", "tail_bytes_per_s", perSecond],
  ["Written by clients", "written_bytes_per_s", perSecond], ["Sent by the store", "store_bytes_per_s", perSecond],
  ["Client connections", "connections", count], ["Reads that wait", "waiting_fetches", count],
  ["Throttled clients", "throttled_clients", clients], ["Retries at the store", "store_retries_per_minute", perMinute],
];
const ALARMING = new Set(["lost_offsets", "errors", "store_retries_per_minute"]);
const OF_READERS = CHARTS.slice(4, 11).map(([, field]) => field);

const clockText = (ms) => new Date(ms).toISOString().slice(11, 16);

// Points of samples that follow one another, as lines.
function pieces(samples, field) {
  const found = [];
  let before = null;
  samples.filter((s) => s[field] !== null).forEach((s) => {
    if (before === null || s.at_ms - before > BREAK_MS) found.push([]);
    found.at(-1).push(s);
    before = s.at_ms;
  });
  return found;
}

function chart([name, field, words], samples, from, until) {
  const node = make("figure", ALARMING.has(field) && samples.some((s) => s[field] > 0) ? "alarm" : "");
  const values = samples.map((s) => s[field]).filter((value) => value !== null);
  const last = values.length ? words(values.at(-1)) : "–";
  const high = Math.max(...values, 0);
  const caption = make("figcaption", "", name);
  const now = make("strong", "", last);
  caption.append(now);
  const x = (ms) => (CHART_WIDTH * (ms - from)) / (until - from);
  const y = (value) => CHART_HEIGHT - 1 - ((CHART_HEIGHT - 4) * value) / (high || 1);
  const svg = makeSvg("svg", { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "chart" });
  svg.setAttribute("aria-label", values.length ? `${name}: now ${last}, at most ${words(high)}` : `${name}: no samples yet`);
  svg.append(makeSvg("line", { class: "axis", x1: 0, x2: CHART_WIDTH, y1: CHART_HEIGHT - 1, y2: CHART_HEIGHT - 1 }));
  pieces(samples, field).forEach((piece) => {
    // A single sample is a short line.
    const points = piece.length > 1 ? piece : [{ at_ms: piece[0].at_ms - (until - from) / 60, [field]: piece[0][field] }, piece[0]];
    const line = points.map((s) => `${x(s.at_ms).toFixed(1)},${y(s[field]).toFixed(1)}`);
    svg.append(makeSvg("polygon", { class: "area", points: [`${x(points[0].at_ms)},${CHART_HEIGHT - 1}`, ...line, `${x(points.at(-1).at_ms)},${CHART_HEIGHT - 1}`].join(" ") }),
      makeSvg("polyline", { class: "line", points: line.join(" ") }));
  });
  const foot = make("p", "quiet", `max ${values.length ? words(high) : "–"}`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = from + ((until - from) * (event.clientX - box.left)) / box.width;
    const near = samples.filter((s) => s[field] !== null)
      .reduce((best, s) => (best === null || Math.abs(s.at_ms - at) < Math.abs(best.at_ms - at) ? s : best), null);
    if (near) setText(foot, `${clockText(near.at_ms)} UTC: ${words(near[field])}`);
  });
  svg.addEventListener("pointerleave", () => setText(foot, `max ${values.length ? words(high) : "–"}`));
  node.append(caption, svg, foot);
  return node;
}

async function drawCharts() {
  if (location.hash.slice(1) || !latest) { $("charts-part").hidden = true; return; }
  const { items } = await ask("api/history", { limit: 1000 });
  if (items.length < 2) { $("charts-part").hidden = true; return; }
  const until = items.at(-1).at_ms, from = Math.min(items[0].at_ms, until - WINDOW_MIN_MS);
  $("charts-part").hidden = false;
  const time = rough(Math.round((until - from) / 1000 / 60) * 60).replace(/^1 min$/, "minute").replace(/^1 h$/, "hour");
  setText($("charts-title"), `The last ${time}`);
  const visible = CHARTS.filter(([, field]) => latest.status.mode !== "archive" || !OF_READERS.includes(field));
  redraw($("charts"), JSON.stringify([items.at(-1), visible.length]), () => visible.map((one) => chart(one, items, from, until)));
}

// --- timelines -------------------------------------------------------------------------------------
const LANES = [["archived", "archived", "archived"], ["brokers", "log", "on the brokers"], ["lost", "gap", "lost"]];
const TICKS = 6;

function dateText(ms, whole) {
  const text = new Date(ms).toISOString();
  if (whole < 2 * 86400000) return `${text.slice(5, 10)} ${text.slice(11, 16)}`;
  return text.slice(0, 10);
}

// Spans of /api/…/timeline: one lane for each kind, from the oldest record to now.
function timelineNodes(spans) {
  const from = Math.min(...spans.map((s) => s.from_ms)), until = Math.max(...spans.map((s) => s.until_ms), from + 1);
  const x = (ms) => (100 * (ms - from)) / (until - from);
  const lanes = LANES.map(([kind, className, words]) => {
    const alike = spans.filter((s) => s.kind === kind);
    const svg = makeSvg("svg", { class: "lane", role: "img" });
    const when = alike.map((s) => `${dateText(s.from_ms, 0)} to ${dateText(s.until_ms, 0)}`).slice(0, 5).join(", ");
    svg.setAttribute("aria-label", `${words}: ${when || "nothing"}`);
    svg.append(makeSvg("rect", { class: "track", width: "100%", height: 14, rx: 2 }));
    alike.forEach((s) => {
      const width = Math.max(x(s.until_ms) - x(s.from_ms), 0.4);
      const rect = makeSvg("rect", { class: className, x: `${Math.min(x(s.from_ms), 100 - width)}%`, width: `${width}%`, height: 14, rx: 2 });
      const title = makeSvg("title", {});
      const offsets = s.first_offset === null ? partitionsText(s.partitions) : `offsets ${range(s.first_offset, s.last_offset)}`;
      title.textContent = `${words}: ${dateText(s.from_ms, 0)} to ${dateText(s.until_ms, 0)} UTC, ${offsets}`;
      rect.append(title);
      svg.append(rect);
    });
    const line = make("div", "lane-line");
    line.append(make("span", "", words), svg);
    return line;
  });
  const ticks = make("div", "ticks quiet");
  for (let i = 0; i < TICKS; i += 1) ticks.append(make("span", "", dateText(from + ((until - from) * i) / (TICKS - 1), until - from)));
  const oldest = spans.filter((s) => s.kind === "archived").map((s) => s.from_ms);
  const local = spans.filter((s) => s.kind === "brokers").map((s) => s.from_ms);
  const parts = [oldest.length ? `archived since ${dateText(Math.min(...oldest), 0)}` : "", local.length ? `on the brokers since ${dateText(Math.min(...local), 0)}` : "",
    ...spans.filter((s) => s.kind === "lost").slice(0, 3).map((s) => `lost: about ${dateText(s.from_ms, 0)} to ${dateText(s.until_ms, 0)}`)];
  return [make("p", "quiet", `${parts.filter(Boolean).join(" · ")} (UTC, estimated from the segments' timestamps)`), ...lanes, ticks];
}

async function drawDates() {
  const part = $("dates-part");
  if (location.hash.slice(1) || !latest) { part.hidden = true; return; }
  const { items } = await ask("api/timeline", { limit: 1000 });
  part.hidden = !items.length;
  redraw($("dates"), JSON.stringify(items), () => (items.length ? timelineNodes(items) : []));
}

let charting = false;
async function pollCharts() {
  if (charting) return;
  charting = true;
  try { await drawCharts(); await drawDates(); } catch { /* the poll of the status says that nothing answers */ }
  charting = false;
}
setInterval(() => { if (!document.hidden) pollCharts(); }, HISTORY_POLL_MS);
document.addEventListener("status", pollCharts, { once: true });
window.addEventListener("hashchange", pollCharts);
