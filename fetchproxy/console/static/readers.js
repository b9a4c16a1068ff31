"use strict";
// Who reads: the connected clients of /api/status with what /api/readers knows of their archived reads, and the groups.
// Rates are differences between two polls. Uses the helpers of console.js.

const READERS_POLL_MS = 5000;
const READERS_SHOWN_MAX = 50;
const recordsPerSecond = (n) => `${count(n)} records/s`;
const NOBODY = new Set(["this process", "other"]); // addresses that no client has
let readersBefore = new Map(), groupsBefore = new Map();

const readerKey = (r) => JSON.stringify([r.address, r.client_id]);

// What a client costs, as one text.
function costText(one) {
  if (one === null) return "–";
  const requests = one.gets + one.lists + one.puts;
  return `${size(one.store_bytes)}, ${count(requests)} request${requests === 1 ? "" : "s"}` + (one.usd === null ? "" : `, $${one.usd.toFixed(4)}`);
}

// Of an account: archived bytes/s and the share of the time for which it was told to wait.
function ratesOf(one, before, at) {
  if (!one || !before || at <= before.at) return { archived: null, throttled: null };
  const seconds = (at - before.at) / 1000;
  return { archived: Math.max(one.served_bytes - before.served_bytes, 0) / seconds,
    throttled: Math.max(one.throttle_seconds - before.throttle_seconds, 0) / seconds };
}

function tierText(speed, archived) {
  if (archived === null) return speed ? "not known yet" : "idle";
  if (archived >= 1 && speed !== null && speed > 1.5 * archived) return "archive and brokers";
  if (archived >= 1) return "archive";
  return speed ? "brokers" : "idle";
}

function readsText(client) {
  if (!client) return "not connected now";
  return `${client.topics.join(", ") || "not known"} (${partitionsText(client.partitions)})`;
}

const percent = (share) => (share === null ? "–" : share < 0.005 ? "no" : `${Math.min(Math.round(share * 100), 100)} %`);

function readerRow({ client, account, archived, throttled }) {
  const tr = make("tr");
  const head = make("th", "", (client ? client.client_id : account.client_id) || "(no client id)");
  head.scope = "row";
  head.append(" ", make("small", "quiet", [client ? client.address : account.address, account?.user, client && client.software,
    client && client.connections > 1 ? `${count(client.connections)} connections` : ""].filter(Boolean).join(" · ")));
  const plain = (name, text) => { const td = make("td", "", text); td.dataset.name = name; return td; };
  const speed = client ? client.bytes_per_s : null;
  const spoken = client && client.records_per_s !== null ? `${perSecond(speed)}, ${recordsPerSecond(client.records_per_s)}` : perSecond(speed);
  const pauses = !client ? "–" : client.pace_records_per_s === null ? (client.pauses ? count(client.pauses) : "none")
    : `${count(client.pauses)}, ${recordsPerSecond(client.pace_records_per_s)}, held back ${client.held_back_s.toFixed(1)} s`;
  tr.append(head, plain("Group", account?.group || "–"), plain("Reads", readsText(client)), plain("From", tierText(speed, archived)),
    cell("Speed", spoken), cell("Archived part", perSecond(archived)), cell("Throttled", percent(throttled), throttled > 0.5),
    cell("Pauses, pace", pauses), cell("Cost in the store", costText(account)));
  return tr;
}

async function drawReaders() {
  const { clients, clients_total: total, mode } = latest.status;
  $("clients-part").hidden = mode === "archive";
  if (mode === "archive") return;
  const at = performance.now();
  const { items } = await ask("api/readers", { limit: 1000 });
  const accounts = new Map(items.filter((r) => !NOBODY.has(r.address)).map((r) => [readerKey(r), r]));
  const rowOf = (client, account) => ({ client, account, ...ratesOf(account, account && readersBefore.get(readerKey(account)), at) });
  const rows = clients.map((client) => rowOf(client, accounts.get(readerKey(client)) ?? null));
  const connected = new Set(clients.map(readerKey));
  const others = [...accounts.values()].filter((r) => !connected.has(readerKey(r)) && r.served_bytes > 0);
  rows.push(...others.slice(0, Math.max(READERS_SHOWN_MAX - rows.length, 0)).map((account) => rowOf(null, account)));
  redraw($("clients"), JSON.stringify(rows), () => rows.map(readerRow));
  readersBefore = new Map([...accounts].map(([key, one]) => [key, { ...one, at }]));
  const more = $("more-clients");
  more.hidden = rows.length > 0 && total <= clients.length;
  setText(more, rows.length ? `${count(total - clients.length)} more clients read less than these.` : "No client is reading now.");
  await drawGroups();
}

async function drawGroups() {
  const at = performance.now();
  const { items, next } = await ask("api/groups", { limit: READERS_SHOWN_MAX });
  $("groups-title").hidden = items.length === 0;
  $("more-groups").hidden = next === null;
  const rows = items.map((group) => ({ group, ...ratesOf(group, groupsBefore.get(group.group), at) }));
  redraw($("groups"), JSON.stringify(rows), () => rows.map(({ group, archived, throttled }) => {
    const tr = make("tr");
    const head = make("th", "", group.group);
    head.scope = "row";
    tr.append(head, cell("Clients", count(group.clients)), cell("Archived records", perSecond(archived)),
      cell("Throttled clients", throttled === null ? "–" : throttled < 0.005 ? "none" : throttled.toFixed(1)), cell("Cost in the store", costText(group)));
    return tr;
  }));
  groupsBefore = new Map(items.map((group) => [group.group, { ...group, at }]));
}

async function pollReaders() {
  // The poll of the status says it if nothing answers.
  if (latest && !document.hidden) try { await drawReaders(); } catch { /* as above */ }
  setTimeout(pollReaders, READERS_POLL_MS);
}
document.addEventListener("status", pollReaders, { once: true });
