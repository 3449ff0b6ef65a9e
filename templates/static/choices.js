/* The user's preferences (theme, times, keys), and times formatted to match.
   data-set="theme=dark", data-cycle  saves a choice; switches to the next theme
   time[data-when], text[data-at]  times shown as relative, local or UTC; <body data-now> is the server's clock */

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
  if (name === "times") showTimes(true);
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

const skew = Number(document.body.dataset.now) - Date.now();

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
showChoices();
