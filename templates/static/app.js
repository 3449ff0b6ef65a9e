/* What pages can do beyond reading and forms.  Texts go in by textContent.

   <main data-live="TOPIC" data-live-ids="1,2">  the stream of the page; addresses and the server's
     clock are on <body>: data-events, data-poll, data-now
   data-live="KEY", data-points="KEY"  a text or <progress>, a small chart that changes in place
   #live, #live-text, #new-rows, #says  the chip, its words, the pill, what is read out
   data-hold  holds what is live
   <ol data-tail data-max>, <template data-tail-row>  rows as they happen; in the template
     data-field="KEY", data-link="KEY", data-time="KEY"; the row gets the class row.kind
   data-tail-filter, data-tail-missed, data-tail-empty  input, "213 not shown", shown while empty
   data-copy="#id" its text, another value itself; data-copy-from="URL" what that answers
   data-dialog  a link whose page has a .confirm section, opened here; data-cancel closes it
   data-open="#id"  opens a <dialog> of this page
   .tick input, data-select-all, data-selected  boxes of a list, "3 selected"
   data-key="r", "g q"  the key that presses it, in the row with the focus, else on the page
   data-message="ID"  what y copies
   time[data-when], text[data-at]  written as the reader likes: relative, local, UTC
   data-set="theme=dark", data-cycle  a choice that stays; the next theme
   data-complete="URL"  completions */

const POLL_MS = 5000;
const STREAM_AGAIN = 12; // polls
const SAY_MS = 10000;
const CHOICES = { theme: ["auto", "light", "dark"], times: ["relative", "local", "utc"], keys: ["on", "off"] };

const root = document.documentElement;
const page = document.body.dataset;

const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const main = one("#main");
const number = (count) => count.toLocaleString("en");

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function added(tag, className) {
  const node = document.createElement(tag);
  node.className = className;
  (one("dialog[open]") ?? document.body).append(node);
  return node;
}

function toast(text) {
  one(".toast")?.remove();
  const node = added("p", "toast");
  node.textContent = text;
  setText(one("#says"), text);
  setTimeout(() => node.remove(), 2500);
}

/* -- choices that stay: the theme in a cookie, so that the server can write it into the page */

function stored(kind) {
  try {
    return window[kind];
  } catch {
    return {}; // a browser that keeps nothing: for this page only
  }
}

const kept = stored("localStorage");

function choice(name) {
  const value = name === "theme" ? root.dataset.theme : kept[`phpmq-${name}`];
  return CHOICES[name].includes(value) ? value : CHOICES[name][0];
}

function choose(name, value) {
  if (name === "theme") {
    root.dataset.theme = value;
    document.cookie = `phpmq-theme=${value}; path=/; max-age=31536000; samesite=lax`;
  } else kept[`phpmq-${name}`] = value;
  if (name === "times") showTimes(true);
  showChoices();
}

function showChoices() {
  for (const button of all("[data-set]")) {
    const [name, value] = button.dataset.set.split("=");
    button.setAttribute("aria-pressed", choice(name) === value);
  }
}

/* -- times, by the server's clock */

const skew = Number(page.now) - Date.now();

function duration(ms) {
  const units = [[86400e3, "d"], [3600e3, "h"], [60e3, "min"], [1e3, "s"]];
  const at = units.findIndex(([size]) => ms >= size);
  const [[size, name], [below, word] = []] = units.slice(at);
  const count = Math.floor(ms / size);
  const rest = at < 2 && count < 10 ? Math.floor((ms % size) / below) : 0;
  return `${number(count)} ${name}${rest ? ` ${rest} ${word}` : ""}`;
}

function written(at, how) {
  if (how === "utc") return `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  if (how === "local") return at.toLocaleString();
  const gap = Date.now() + skew - at;
  if (Math.abs(gap) < 1000) return "just now";
  return gap > 0 ? `${duration(gap)} ago` : `in ${duration(-gap)}`;
}

function showTimes(isChanged) {
  const how = choice("times");
  if (how !== "relative" && !isChanged) return;
  for (const time of all("time[data-when]")) setText(time, written(new Date(time.dateTime), how));
  const timeZone = how === "local" ? undefined : "UTC";
  for (const text of all("text[data-at]")) {
    const isClock = text.textContent.includes(":");
    const parts = isClock ? { timeStyle: "short" } : { month: "short", day: "numeric" };
    setText(text, new Date(text.dataset.at).toLocaleString("en-GB", { timeZone, ...parts }));
  }
}

for (const time of all("time[data-when]")) {
  time.title = `${new Date(time.dateTime).toLocaleString()} · ${time.title}`;
}
if (choice("times") !== "relative") showTimes(true);
setInterval(() => document.hidden || showTimes(false), 10000);

/* -- live */

const fields = Map.groupBy(all("[data-live]", main), (node) => node.dataset.live);
const charts = Map.groupBy(all("[data-points]", main), (node) => node.dataset.points);
const tail = one("[data-tail]");
const live = { source: null, timer: 0, id: "", polls: 0, isLost: false, held: null };
const spoken = { at: -SAY_MS, timer: 0, text: "" };
const room = Number(tail?.dataset.max) || 500;

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
  pill.textContent = `${number(count)} new, show`;
  pill.href = location.href;
}

// One summary in ten seconds: the last one, once it is time.
function speak(text) {
  spoken.text = text;
  spoken.timer ||= setTimeout(() => {
    Object.assign(spoken, { at: performance.now(), timer: 0 });
    setText(one("#says"), spoken.text);
  }, Math.max(0, spoken.at + SAY_MS - performance.now()));
}

function show({ shown = {}, points = {}, new: count, rows = [], missed = 0, says }) {
  for (const key in shown) fields.get(key)?.forEach((node) => showField(node, shown[key]));
  for (const key in points) charts.get(key)?.forEach((svg) => showPoints(svg, points[key]));
  if (count !== undefined) showNew(count);
  if (tail) showRows(rows, missed);
  if (says) speak(says);
}

function take(data, id) {
  live.id = id || live.id;
  showState("live");
  if (live.held) hold(data);
  else show(data);
}

// What comes while held is put together; rows past the room for them are only counted.
function hold({ shown, points, rows = [], missed = 0, ...rest }) {
  const { held } = live;
  Object.assign(held, rest);
  Object.assign(held.shown, shown);
  Object.assign(held.points, points);
  held.rows.push(...rows);
  held.missed += missed;
  const surplus = Math.max(0, held.rows.length - room);
  held.rows.splice(0, surplus);
  held.missed += surplus;
  showHold();
}

function toggleHold() {
  const { held } = live;
  live.held = held ? null : { shown: {}, points: {}, rows: [], missed: 0 };
  if (held) show(held);
  showHold();
}

function showHold() {
  const count = live.held ? live.held.rows.length + live.held.missed : 0;
  for (const button of all("[data-hold]")) {
    button.textContent = live.held ? `Go on${count ? `, ${number(count)} held` : ""}` : "Hold";
    button.setAttribute("aria-pressed", live.held !== null);
  }
  main.classList.toggle("held", live.held !== null);
}

function showRows(rows, missed) {
  for (const row of rows) {
    if (!one(`[data-row="${CSS.escape(row.id)}"]`, tail)) tail.prepend(tailRow(row));
  }
  while (tail.children.length > room) tail.lastElementChild.remove();
  const note = one("[data-tail-missed]");
  if (note && missed) {
    note.dataset.count = Number(note.dataset.count ?? 0) + missed;
    note.textContent = `${number(Number(note.dataset.count))} not shown`;
    note.hidden = false;
  }
  const empty = one("[data-tail-empty]");
  if (empty) empty.hidden = tail.children.length > 0;
  filterTail();
}

function tailRow(row) {
  const node = one("[data-tail-row]").content.firstElementChild.cloneNode(true);
  node.dataset.row = row.id;
  if (/^[a-z-]+$/.test(row.kind)) node.classList.add(row.kind);
  for (const part of all("[data-field]", node)) part.textContent = row[part.dataset.field] ?? "";
  for (const link of all("[data-link]", node)) {
    const path = row[link.dataset.link];
    if (/^\/(?!\/)/.test(path)) link.href = path;
  }
  for (const time of all("[data-time]", node)) {
    const at = new Date(Number(row[time.dataset.time]) || 0);
    const iso = time.dateTime = at.toISOString();
    time.title = `${at.toLocaleString()} · ${iso}`;
    time.textContent = choice("times") === "local" ? at.toLocaleTimeString() : iso.slice(11, 23);
  }
  return node;
}

function filterTail() {
  const text = one("[data-tail-filter]")?.value.toLowerCase() ?? "";
  for (const row of tail?.children ?? []) row.hidden = !row.textContent.toLowerCase().includes(text);
}

function showState(state) {
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
    if (source.readyState === EventSource.CLOSED) poll(); // no place for a stream, or an error
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
    if (answer.status === 404 || answer.status === 410) return end();
    if (!answer.ok) throw new Error(answer.statusText);
    const wasLost = live.isLost;
    const data = await answer.json();
    take(data, data.id);
    if (wasLost) live.polls = STREAM_AGAIN - 1; // it is back: its streams may be too
  } catch {
    showState("lost");
  }
  if (document.hidden || live.source) return;
  live.polls += 1;
  live.timer = setTimeout(live.polls % STREAM_AGAIN ? poll : openStream, POLL_MS);
}

if (main.dataset.live && page.events) {
  document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : openStream()));
  addEventListener("pagehide", closeStream);
  addEventListener("pageshow", (event) => event.persisted && openStream());
  openStream();
}

/* -- search field */

const completions = added("datalist", "");
completions.id = "completion-list";

async function complete(input) {
  const typed = input.value;
  const url = new URL(input.dataset.complete, location.href);
  url.searchParams.set("q", typed);
  const answer = await fetch(url).catch(() => null);
  if (!answer?.ok || input.value !== typed) return;
  const head = typed.slice(0, typed.lastIndexOf(" ") + 1);
  const { items } = await answer.json();
  completions.replaceChildren(...items.map((item) => new Option("", head + item)));
}

for (const input of all("[data-complete]")) input.setAttribute("list", completions.id);

/* -- copy; plain http has no clipboard API, there a selected text area is the way */

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const area = added("textarea", "sr");
    area.value = text;
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    before?.focus();
    return isDone;
  }
}

async function copyFor({ dataset: { copy: what, copyFrom } }) {
  let text = what?.startsWith("#") ? one(what)?.textContent : what;
  if (copyFrom) text = await fetch(copyFrom).then((answer) => answer.ok && answer.text(), () => "");
  toast(text && (await copy(text)) ? "Copied" : "Could not be copied");
}

/* -- dialogs: the section of a confirm page, shown here */

async function openConfirm(link) {
  const answer = await fetch(link.href).catch(() => null);
  const text = answer?.ok ? await answer.text() : "";
  const section = one(".confirm", new DOMParser().parseFromString(text, "text/html"));
  if (!section) return location.assign(link.href); // the page itself says what is wrong
  const dialog = added("dialog", "dialog");
  dialog.append(document.importNode(section, true));
  for (const next of all("input[name=next]", dialog)) next.value = location.pathname + location.search;
  dialog.addEventListener("close", () => { dialog.remove(); link.focus(); });
  dialog.showModal();
  one("[data-cancel]", dialog)?.focus();
}

/* -- lists: rows, boxes */

let lastBox = null;
const boxes = (form) => all("tbody .tick input", form);

function showSelected(form) {
  const mine = boxes(form);
  const count = mine.filter((box) => box.checked).length;
  for (const node of all("[data-selected]", form)) setText(node, `${number(count)} selected`);
  for (const every of all("[data-select-all]", form)) {
    every.checked = count > 0 && count === mine.length;
    every.indeterminate = count > 0 && count < mine.length;
  }
}

function tick(box, isRange) {
  const mine = boxes(box.form);
  const [from, to] = [mine.indexOf(lastBox), mine.indexOf(box)].sort((a, b) => a - b);
  if (isRange && from >= 0) for (const other of mine.slice(from, to)) other.checked = box.checked;
  lastBox = box;
  showSelected(box.form);
}

const rowOf = (node) => node?.closest?.("main tbody tr") ?? null;
const linkOf = (row) => one(".lead a", row) ?? one("a", row);

function focusRow(row) {
  const target = linkOf(row) ?? one("button, input", row) ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus({ focusVisible: true });
  row.scrollIntoView({ block: "nearest" });
}

function walk(step) {
  const list = all("table.list tbody tr", main).filter((r) => r.checkVisibility());
  const next = list[list.indexOf(rowOf(document.activeElement)) + step];
  if (next) focusRow(next);
}

// From a row to its page, and from there with Esc back to that row.
const trail = stored("sessionStorage");

function remember(link) {
  trail.phpmq = JSON.stringify({ list: location.href, row: link.href });
}

function goBack() {
  const { list, row } = JSON.parse(trail.phpmq ?? "{}");
  if (list && new URL(row).pathname === location.pathname && list !== location.href) {
    trail.phpmq = JSON.stringify({ list, row, back: true });
    location.assign(list);
  } else all(".crumb a").at(-1)?.click();
}

function comeBack() {
  const { list, row, back } = JSON.parse(trail.phpmq ?? "{}");
  const [{ type }] = performance.getEntriesByType("navigation");
  if (list !== location.href || !(back || type === "back_forward")) return;
  trail.phpmq = JSON.stringify({ list, row });
  const link = all("main tbody a").find((other) => other.href === row);
  if (link) focusRow(rowOf(link));
}

/* -- keyboard */

const TYPED = "input:not([type=checkbox], [type=radio]), textarea, select";
let sequence = "";
let sequenceTimer = 0;

function press(key) {
  const selector = `[data-key="${CSS.escape(key)}"]`;
  const row = rowOf(document.activeElement);
  let target = row && one(selector, row);
  if (!target) {
    const box = row && one(".tick input", row);
    if (box && "r#e".includes(key) && !boxes(box.form).some((other) => other.checked)) {
      box.checked = true;
      tick(box, false);
    }
    target = all(selector).find((node) => !rowOf(node) && node.checkVisibility());
  }
  if (!target || target.disabled) return false;
  if (target.matches(TYPED)) target.focus();
  else target.click();
  return true;
}

function toggleBox(isRange) {
  const row = rowOf(document.activeElement);
  const box = row && one(".tick input", row);
  if (!box) return;
  box.checked = isRange || !box.checked;
  tick(box, isRange);
}

function cycleTheme() {
  const { theme } = CHOICES;
  choose("theme", theme[(theme.indexOf(choice("theme")) + 1) % theme.length]);
  toast(`Theme: ${choice("theme")}`);
}

async function copyId() {
  const id = one("[data-message]", rowOf(document.activeElement) ?? main)?.dataset.message;
  if (id) toast((await copy(id)) ? `Copied ${id}` : id);
}

const KEYS = {
  j: () => walk(1),
  k: () => walk(-1),
  x: () => toggleBox(false),
  X: () => toggleBox(true),
  y: copyId,
  t: cycleTheme,
  Escape: goBack,
};

function onKey(event) {
  const isTyping = event.target.closest(TYPED);
  if (event.key === "Enter" && event.target.matches("tbody .tick input")) {
    event.preventDefault(); // it would press the first button of the list
    linkOf(rowOf(event.target))?.click();
  }
  if (event.key === "Escape" && one("details.menu[open]")) return closeMenus();
  if (event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]") || choice("keys") === "off") return;
  if (isTyping && event.key === "Escape") event.target.blur();
  if (isTyping) return;
  const key = sequence + event.key;
  clearTimeout(sequenceTimer);
  sequence = event.key === "g" && !sequence ? "g " : "";
  sequenceTimer = setTimeout(() => { sequence = ""; }, 1500);
  if (sequence) return;
  if (KEYS[key]) KEYS[key]();
  else if (["Enter", " ", "Tab"].includes(key) || !press(key)) return;
  event.preventDefault();
}

function closeMenus(but) {
  for (const menu of all("details.menu[open]")) menu.open = menu === but;
}

/* -- one listener for what is pressed: the first that fits */

const CLICKS = {
  "[data-copy], [data-copy-from]": copyFor,
  "[data-set]": (button) => choose(...button.dataset.set.split("=")),
  "[data-cycle]": cycleTheme,
  "[data-hold]": toggleHold,
  "[data-open]": (button) => one(button.dataset.open).showModal(),
  "dialog [data-cancel]": (link, event) => {
    event.preventDefault();
    link.closest("dialog").close();
  },
  "a[data-dialog]": (link, event) => {
    event.preventDefault();
    openConfirm(link);
  },
  "[data-select-all]": (every) => {
    for (const box of boxes(every.form)) box.checked = every.checked;
    showSelected(every.form);
  },
  "tbody .tick input": (box, event) => tick(box, event.shiftKey),
  "main tbody tr a": remember,
};

document.addEventListener("click", (event) => {
  const { target } = event;
  closeMenus(target.closest("details.menu"));
  if (target.matches("dialog")) target.close(); // its backdrop
  const fits = (selector) => target.closest(selector);
  const selector = Object.keys(CLICKS).find(fits);
  if (selector && !(event.ctrlKey || event.metaKey)) CLICKS[selector](fits(selector), event);
});
document.addEventListener("keydown", onKey);
document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-tail-filter]")) filterTail();
  if (target.matches("[data-complete]")) complete(target);
});
showChoices();
for (const form of all("form.select")) showSelected(form);
one(".rail [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
comeBack();
