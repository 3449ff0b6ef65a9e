/* Live updates of pages.
   <main data-live="TOPIC" data-live-ids="1,2">  the stream; <body data-events data-poll>  its URLs
   #broker, #broker-text  the header's chip and its text; <body data-ready>  URL of its state
   data-live="KEY", data-points="KEY"  an updated text or <progress>; an updated sparkline
   #live, #live-text, #new-rows, #says  the live chip, its text, the pill, screen reader texts
   data-hold  holds updates
   <ol data-tail data-max>, <template data-tail-row>  new rows; the template contains
     data-field="KEY", data-link="KEY", data-time="KEY"; the row gets the class row.kind
   data-tail-filter, data-tail-missed, data-tail-empty  input, "213 not shown", shown while empty */

import { showInZone } from "./choices.js";
import { all, main, number, one, setText } from "./dom.js";

const POLL_MS = 5000;
const STREAM_AGAIN = 12; // number of polls before the stream is retried
const SAY_MS = 10000;
const ASK_MS = 10000; // interval at which an open page checks the broker
// A standby answers for itself, and says "standby" only while it relays to an active broker.
const STATES = { ready: ["good", "Running"], degraded: ["good", "Running"], standby: ["good", "Running"],
  starting: ["warn", "Starting"], draining: ["warn", "Draining"], "not ready": ["bad", "Not ready"] };

const page = document.body.dataset;
const fields = Map.groupBy(all("[data-live]", main), (node) => node.dataset.live);
const charts = Map.groupBy(all("[data-points]", main), (node) => node.dataset.points);
const tail = one("[data-tail]");
const live = { source: null, timer: 0, id: "", polls: 0, isLost: false, held: null };
const spoken = { at: -SAY_MS, timer: 0, text: "" };
const room = Number(tail?.dataset.max) || 500;
let notShown = 0;

function showField(node, text) {
  node.classList.toggle("gone", text === null);
  if (text === null) return;
  if (node.matches("progress")) node.value = text.replaceAll(",", "");
  else setText(node, text);
  node.classList.toggle("zero", text === "0" || text === "–");
}

function showPoints(svg, points) {
  const { width, height } = svg.viewBox.baseVal;
  const left = points.split(",", 1)[0];
  one("polyline", svg).setAttribute("points", points);
  one("polygon", svg)?.setAttribute("points", points && `${left},${height} ${points} ${width},${height}`);
}

function showNew(count) {
  const pill = one("#new-rows");
  if (!pill) return;
  pill.hidden = !count;
  pill.textContent = `Show ${number(count)} new`;
  pill.href = location.href;
}

// Announces the latest summary to screen readers, at most once every ten seconds.
function speak(text) {
  spoken.text = text;
  spoken.timer ||= setTimeout(() => {
    Object.assign(spoken, { at: performance.now(), timer: 0 });
    setText(one("#says"), spoken.text);
  }, Math.max(0, spoken.at + SAY_MS - performance.now()));
}

function show({ shown = {}, points = {}, new: count, rows = [], missed = 0, gap, says }) {
  for (const key in shown) fields.get(key)?.forEach((node) => showField(node, shown[key]));
  for (const key in points) charts.get(key)?.forEach((svg) => showPoints(svg, points[key]));
  if (count !== undefined) showNew(count);
  if (tail) showRows(rows, missed, gap);
  if (says) speak(says);
}

function take(data, id) {
  live.id = id || live.id;
  showState("live");
  if (live.held) hold(data);
  else show(data);
}

// Merges updates that arrive while the page is held; rows beyond the maximum are only counted.
function hold({ shown, points, rows = [], missed = 0, gap, ...rest }) {
  const { held } = live;
  Object.assign(held, rest);
  held.gap ||= gap;
  Object.assign(held.shown, shown);
  Object.assign(held.points, points);
  held.rows.push(...rows);
  const surplus = held.rows.splice(0, Math.max(0, held.rows.length - room));
  held.missed += missed + surplus.length;
  showHold();
}

export function toggleHold() {
  const { held } = live;
  live.held = held ? null : { shown: {}, points: {}, rows: [], missed: 0 };
  if (held) show(held);
  showHold();
}

function showHold() {
  const { held } = live;
  const count = held && held.rows.length + held.missed;
  for (const button of all("[data-hold]")) {
    button.textContent = held ? `Resume${count ? `, ${number(count)} held` : ""}` : "Hold";
    button.setAttribute("aria-pressed", held !== null);
  }
  main.classList.toggle("held", held !== null);
}

// Rows are listed newest first, whenever they arrive; a gap is a row of its own.
function showRows(rows, missed, gap) {
  if ((missed || gap) && tail.children.length) {
    const node = document.createElement("li");
    node.className = "gap";
    node.dataset.at = rows[0]?.at ?? Date.now();
    node.textContent = missed ? `${number(missed)} not shown here` : "Events may be missing here";
    insertRow(node);
  }
  for (const row of rows) {
    if (!one(`[data-row="${CSS.escape(row.id)}"]`, tail)) insertRow(tailRow(row));
  }
  while (tail.children.length > room) tail.lastElementChild.remove();
  const note = one("[data-tail-missed]");
  notShown += missed;
  if (note && notShown) {
    note.textContent = `${number(notShown)} not shown`;
    note.hidden = false;
  }
  const empty = one("[data-tail-empty]");
  if (empty) empty.hidden = tail.children.length > 0;
  filterTail();
}

function insertRow(node) {
  const at = Number(node.dataset.at);
  const older = [...tail.children].find((other) => Number(other.dataset.at) <= at);
  tail.insertBefore(node, older ?? null);
}

function tailRow(row) {
  const node = one("[data-tail-row]").content.firstElementChild.cloneNode(true);
  node.dataset.row = row.id;
  node.dataset.at = row.at;
  if (/^[a-z-]+$/.test(row.kind)) node.classList.add(row.kind);
  for (const part of all("[data-field]", node)) part.textContent = row[part.dataset.field] ?? "";
  for (const link of all("[data-link]", node)) {
    const path = row[link.dataset.link];
    if (/^\/(?!\/)/.test(path)) link.href = path;
  }
  for (const time of all("[data-time]", node)) {
    time.dateTime = new Date(Number(row[time.dataset.time]) || 0).toISOString();
  }
  showInZone(node);
  return node;
}

export function filterTail() {
  const text = one("[data-tail-filter]")?.value.toLowerCase() ?? "";
  for (const row of tail?.children ?? []) row.hidden = !row.textContent.toLowerCase().includes(text);
}

// Updates the header's chip, also on pages without a stream.
async function askBroker() {
  const chip = one("#broker");
  if (!chip || document.hidden) return;
  const [kind, text] = await fetch(page.ready, { cache: "no-store", signal: AbortSignal.timeout(POLL_MS) })
    .then(async (answer) => STATES[(await answer.text()).split("\n", 1)[0]] ?? STATES["not ready"])
    .catch(() => ["bad", "Unreachable"]);
  chip.className = `chip ${kind}`;
  chip.removeAttribute("title");
  setText(one("#broker-text"), text);
}

function showState(state) {
  if (live.isLost !== (state === "lost")) askBroker();
  live.isLost = state === "lost";
  const chip = one("#live");
  if (!chip) return;
  chip.hidden = false;
  main.classList.toggle("stale", state !== "live");
  setText(one("#live-text"), { live: "Live", lost: "Not live, retrying", over: "Not live" }[state]);
}

function address(path) {
  const url = new URL(path + location.search, location.href);
  url.searchParams.set("topic", main.dataset.live);
  if (main.dataset.liveIds) url.searchParams.set("ids", main.dataset.liveIds);
  return url;
}

function closeStream() {
  clearTimeout(live.timer);
  live.source?.close();
  live.source = null;
}

function openStream() {
  closeStream();
  if (document.hidden || !main.dataset.live) return;
  const source = live.source = new EventSource(address(page.events));
  source.onopen = () => showState("live");
  source.onmessage = (event) => take(JSON.parse(event.data), event.lastEventId);
  source.addEventListener("bye", (event) => JSON.parse(event.data).reason === "gone" && end());
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) poll(); // the stream was refused: too many streams, or an error
    else showState("lost");
  };
}

function end() {
  closeStream();
  delete main.dataset.live;
  showState("over");
}

async function poll() {
  closeStream();
  const url = address(page.poll);
  if (live.id) url.searchParams.set("after", live.id);
  try {
    const answer = await fetch(url, { signal: AbortSignal.timeout(POLL_MS) });
    if ([404, 410].includes(answer.status)) return end();
    if (!answer.ok) throw new Error();
    const data = await answer.json();
    if (live.isLost) live.polls = STREAM_AGAIN - 1; // the broker is back, so retry the stream
    take(data, data.id);
  } catch {
    showState("lost");
  }
  if (document.hidden || live.source) return;
  live.polls += 1;
  live.timer = setTimeout(live.polls % STREAM_AGAIN ? poll : openStream, POLL_MS);
}

setInterval(askBroker, ASK_MS);
document.addEventListener("visibilitychange", askBroker);
if (main.dataset.live && page.events) {
  document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : openStream()));
  addEventListener("pagehide", closeStream);
  addEventListener("pageshow", (event) => event.persisted && openStream());
  openStream();
}
