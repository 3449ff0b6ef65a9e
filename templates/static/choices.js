/* The user's preferences (theme, times, keys), and times formatted to match.
   data-set="theme=dark", data-cycle  saves a choice; switches to the next theme
   time[data-when]  a time shown as relative, local or UTC; <body data-now> is the server's clock
   data-as="STYLE"  any other time: of dateTime or data-at, or from data-since to data-until
   data-zone  the name of the zone of all times and fields of the page; without scripts it is UTC
   input[type=datetime-local]  shown in that zone, sent in UTC */

import { all, number, setText, stored, toast } from "./dom.js";

const CHOICES = { theme: ["auto", "light", "dark"], times: ["relative", "local", "utc"], keys: ["on", "off"] };
const root = document.documentElement;
const kept = stored("localStorage");

export function choice(name) {
  const value = name === "theme" ? root.dataset.theme : kept[`phpmq-${name}`];
  return CHOICES[name].includes(value) ? value : CHOICES[name][0];
}

// The theme is stored in a cookie, because the server renders the theme into the page.
export function choose(name, value) {
  if (name === "theme") {
    root.dataset.theme = value;
    document.cookie = `phpmq-theme=${value}; path=/; max-age=31536000; samesite=lax`;
  } else kept[`phpmq-${name}`] = value;
  if (name === "times") showZone();
  showChoices();
}

function showChoices() {
  for (const button of all("[data-set]")) {
    const [name, value] = button.dataset.set.split("=");
    button.setAttribute("aria-pressed", choice(name) === value);
  }
}

export function cycleTheme() {
  const { theme } = CHOICES;
  choose("theme", theme[(theme.indexOf(choice("theme")) + 1) % theme.length]);
  toast(`Theme: ${choice("theme")}`);
}

/* -- times, in the zone of the browser unless the user chose UTC */

const skew = Number(document.body.dataset.now) - Date.now();
const clock = { hour: "2-digit", minute: "2-digit" };
const second = { ...clock, second: "2-digit" };
const ms = { ...second, fractionalSecondDigits: 3 };
const day = { month: "short", day: "numeric" };
const year = { year: "numeric" };
const STYLES = { clock, second, ms, day, moment: { ...day, ...clock } };
let timeZone; // undefined is the zone of the browser

const text = (at, parts) => at.toLocaleString("en-US", { timeZone, hourCycle: "h23", ...parts });
const iso = (at) => at.toLocaleString("sv-SE", { timeZone }); // 2026-01-31 15:00:00
const zoneOf = (at) => text(at, { timeZoneName: "short" }).split(" ").at(-1); // GMT+5:30

function duration(ms) {
  const units = [[86400e3, "d"], [3600e3, "h"], [60e3, "min"], [1e3, "s"]];
  const at = units.findIndex(([size]) => ms >= size);
  const [[size, name], [below, word] = []] = units.slice(at);
  const count = Math.floor(ms / size);
  const rest = at < 2 && count < 10 ? Math.floor((ms % size) / below) : 0;
  return `${number(count)} ${name}${rest ? ` ${rest} ${word}` : ""}`;
}

function relative(at) {
  const gap = Date.now() + skew - at;
  if (Math.abs(gap) < 1000) return "just now";
  return gap > 0 ? `${duration(gap)} ago` : `in ${duration(-gap)}`;
}

// The same text as format_period() and format_chosen() of the server.
function period(since, until) {
  const now = new Date(Date.now() + skew);
  const isSame = (a, b) => iso(a).slice(0, 10) === iso(b).slice(0, 10);
  const dayOf = (at) => text(at, day) + (text(at, year) === text(now, year) ? "" : ` ${text(at, year)}`);
  const clockOf = (at) => text(at, iso(at).endsWith(":00") ? clock : second);
  const moment = (at) => (isSame(at, now) ? "" : `${dayOf(at)}, `) + clockOf(at);
  if (!until) return `Since ${moment(since)}`;
  if (!since) return `Before ${moment(until)}`;
  const isWholeDay = clockOf(until) === "00:00" && isSame(new Date(until - 1), since);
  if (isWholeDay && clockOf(since) === "00:00") return dayOf(since);
  const end = isWholeDay ? "24:00" : clockOf(until);
  return `${moment(since)} to ${isWholeDay || isSame(since, until) ? "" : `${dayOf(until)}, `}${end}`;
}

function shown(node) {
  const { as: style, at = node.dateTime, since, until } = node.dataset;
  const times = [since, until].map((each) => each && new Date(each));
  if (style === "period") return period(...times);
  if (style === "chosen") return `${period(...times)} ${zoneOf(times[0] ?? times[1])}`;
  const time = new Date(at);
  if (style === "minute") return `${iso(time).slice(0, 16)} ${zoneOf(time)}`;
  if (style === "full") return `${iso(time)} ${zoneOf(time)}`;
  return text(time, STYLES[style]);
}

const WRITTEN = { relative, local: iso, utc: (at) => `${iso(at)} UTC` };

function showTimes(within = document) {
  const write = WRITTEN[choice("times")];
  for (const time of all("time[data-when]", within)) setText(time, write(new Date(time.dateTime)));
}

export function showInZone(within) {
  showTimes(within);
  for (const node of all("[data-as]", within)) setText(node, shown(node));
  for (const time of all("time[datetime][title]", within)) {
    const at = new Date(time.dateTime);
    time.title = `${iso(at)}.${at.toISOString().slice(20, 23)} ${zoneOf(at)}`;
  }
}

/* -- fields for times: the same instant when the zone changes, and UTC for the server */

const fields = (within = document) => all("input[type=datetime-local]", within);
const utc = (at) => at.toISOString().slice(0, 16);
const instant = (value) => new Date(timeZone ? `${value}Z` : value);
const fieldValue = (at) => iso(at).replace(" ", "T").slice(0, 16);
// A value that nobody changed is sent as the server rendered it: an hour may occur twice.
const sent = ({ value, dataset }) => (value === dataset.shown ? dataset.utc : utc(instant(value)));

function showZone() {
  for (const field of fields()) {
    const { value, defaultValue, dataset } = field;
    dataset.utc = "shown" in dataset ? value && sent(field) : defaultValue;
  }
  timeZone = choice("times") === "utc" ? "UTC" : undefined;
  const name = timeZone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const node of all("[data-zone]")) setText(node, name);
  for (const field of fields()) {
    const { utc: value } = field.dataset;
    field.dataset.shown = field.value = value && fieldValue(new Date(`${value}Z`));
  }
  showInZone(document);
}

document.addEventListener("formdata", ({ target, formData }) => {
  for (const field of fields(target)) if (field.value) formData.set(field.name, sent(field));
});

showZone();
setInterval(() => document.hidden || choice("times") !== "relative" || showTimes(), 10000);
showChoices();
