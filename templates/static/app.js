// Refreshes the numbers of a page in place while it is visible, and adds what needs a script:
// local times, copy buttons.  Everything reads and works without it.

const EVERY_MS = 2000;
const SAYS_EVERY_MS = 10000;

const main = document.getElementById("main");
const chip = document.getElementById("live");
const url = main.dataset.liveUrl;

let timer = 0;
let saidAt = 0;
let said = "";

function setText(node, text) {
  if (node.textContent === text) return;
  node.textContent = text;
  node.classList.toggle("zero", text === "0" || text === "–");
}

function setLine(svg, points) {
  const box = svg.viewBox.baseVal;
  const [area, line] = [svg.querySelector("polygon"), svg.querySelector("polyline")];
  const left = points.split(",", 1)[0];
  line.setAttribute("points", points);
  area.setAttribute(
    "points", points ? `${left},${box.height} ${points} ${box.width},${box.height}` : "",
  );
}

function showFresh(data) {
  for (const node of document.querySelectorAll("[data-live]")) {
    const text = data.shown[node.dataset.live];
    if (text !== undefined) setText(node, text);
  }
  for (const svg of document.querySelectorAll("[data-points]")) {
    const points = data.points[svg.dataset.points];
    if (points !== undefined) setLine(svg, points);
  }
  const pill = document.getElementById("new-rows");
  if (pill) {
    pill.hidden = !data.new;
    pill.textContent = `${data.new} new, show`;
    pill.href = location.href;
  }
  const now = Date.now();
  if (data.says !== said && now - saidAt >= SAYS_EVERY_MS) {
    document.getElementById("says").textContent = said = data.says;
    saidAt = now;
  }
}

function showState(isLive) {
  chip.hidden = false;
  main.classList.toggle("stale", !isLive);
  document.getElementById("live-text").textContent = isLive ? "Live" : "Not live, retrying";
}

async function refresh() {
  timer = 0;
  const ids = Array.from(document.querySelectorAll("[data-id]"), (row) => row.dataset.id);
  const address = new URL(url, location.href);
  if (ids.length) address.searchParams.set("ids", ids.join(","));
  try {
    const answer = await fetch(address, { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.statusText);
    showFresh(await answer.json());
    showState(true);
  } catch {
    showState(false);
  }
  plan();
}

function plan() {
  if (!timer && !document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

function changeVisibility() {
  clearTimeout(timer);
  timer = 0;
  if (!document.hidden) refresh();
}

// Without https there is no clipboard API: a selected text is the fallback.
async function copy(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const isDone = await copy(document.getElementById(button.dataset.copy));
    button.textContent = isDone ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

for (const time of document.querySelectorAll("time[datetime]")) {
  const at = new Date(time.dateTime);
  if (!Number.isNaN(at.getTime())) time.title = `${at.toLocaleString()} · ${time.title}`;
}

if (url) {
  showState(true);
  document.addEventListener("visibilitychange", changeVisibility);
  plan();
}
