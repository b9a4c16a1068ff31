"use strict";
// The browser of archived records: asks /api/records when a person wants to see some. Inserts text with textContent
// only, never as HTML. Uses the helpers of console.js.

const RECORDS_A_PAGE = 20;
const recordsForm = $("records-form");
let recordsNext = null; // the query of the following page

// JSON in one line, which opens to many.
function jsonNode(text) {
  let value;
  try { value = JSON.parse(text); } catch { return null; }
  if (typeof value !== "object" || value === null) return null;
  const node = make("details");
  node.append(make("summary", "", text), make("pre", "", JSON.stringify(value, null, 2)));
  return node;
}

function contentNode(content) {
  if (content === null) return make("i", "quiet", "null");
  if (content.hidden) return make("i", "quiet", `${size(content.bytes)}, hidden: ${content.hidden}`);
  const json = content.hex === undefined ? jsonNode(content.text) : null;
  if (json) return json;
  const node = make("pre", "", content.hex ?? content.text);
  if (content.cut) node.append(make("i", "quiet", `… of ${size(content.bytes)}`));
  return node;
}

function recordRow(record) {
  const tr = make("tr");
  const cellOf = (name, ...nodes) => {
    const td = make("td");
    td.dataset.name = name;
    td.append(...nodes);
    return td;
  };
  const offset = cellOf("Offset", count(record.offset));
  offset.className = "number";
  const headers = record.headers.flatMap((h) => [make("strong", "", h.name), contentNode(h.value)]);
  if (record.more_headers) headers.push(make("i", "quiet", `and ${count(record.more_headers)} more`));
  const time = record.timestamp_ms < 0 ? "none" : new Date(record.timestamp_ms);
  const stamp = time === "none" || Number.isNaN(time.getTime()) ? "none" : time.toISOString().replace("T", " ");
  const at = cellOf("Time", stamp);
  at.className = "moment";
  tr.append(offset, at, cellOf("Key", contentNode(record.key)),
    cellOf("Value", contentNode(record.value)), cellOf("Headers", ...headers));
  return tr;
}

async function showRecords(query) {
  const said = $("records-said");
  setText(said, "reading…");
  $("records-next").hidden = true;
  try {
    const response = await fetch(`api/records?${new URLSearchParams(query)}`, { cache: "no-store" });
    if (!response.ok) throw new Error((await response.text()).trim());
    const page = await response.json();
    $("records").replaceChildren(...page.records.map(recordRow));
    setText(said, [`${page.topic}-${page.partition} is archived: offsets ${range(page.log_start_offset, page.log_end_offset - 1)}`,
      ...page.notes].join("; "));
    recordsNext = page.next_offset === null ? null : { ...query, offset: page.next_offset };
    if (recordsNext) delete recordsNext.timestamp_ms;
    $("records-next").hidden = recordsNext === null;
  } catch (error) {
    $("records").replaceChildren();
    setText(said, error.message);
  }
}

recordsForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = new FormData(recordsForm);
  const query = { topic: given.get("topic"), partition: given.get("partition"), as: given.get("as"), count: RECORDS_A_PAGE };
  const time = given.get("time");
  if (given.get("offset")) query.offset = given.get("offset");
  else if (time) query.timestamp_ms = new Date(time).getTime();
  showRecords(query);
});

$("records-next").addEventListener("click", () => { if (recordsNext) showRecords(recordsNext); });

// A click on a partition's name shows its first archived records.
$("partitions").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-topic]");
  if (!button) return;
  recordsForm.elements.topic.value = button.dataset.topic;
  recordsForm.elements.partition.value = button.dataset.partition;
  recordsForm.elements.offset.value = recordsForm.elements.time.value = "";
  recordsForm.requestSubmit();
  $("records-title").scrollIntoView();
});
