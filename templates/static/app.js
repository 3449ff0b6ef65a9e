/* Page behaviour beyond links and forms.
   data-complete="URL"  completions
   data-copy="#id"  copies that element's text, or any other value itself; data-copy-from="URL"  copies the response
   data-dialog  a link to a page whose .confirm section opens as a dialog; data-cancel closes it
   data-open="#id"  opens a <dialog>
   .tick input, data-select-all, data-selected  checkboxes in a list and the text "3 selected"
   data-key="r", "g q"  key that activates the element in the focused row, otherwise on the page
   data-message="ID"  the id that the key y copies */

import { choice, choose, cycleTheme, showInZone } from "./choices.js";
import { added, all, main, number, one, setText, stored, toast } from "./dom.js";
import { filterTail, toggleHold } from "./live.js";

const textOf = (url) => fetch(url).then((answer) => (answer.ok ? answer.text() : ""), () => "");

/* -- search field */

const completions = added("datalist", "");
completions.id = "completion-list";

async function complete(input) {
  const typed = input.value;
  const url = new URL(input.dataset.complete, location.href);
  url.searchParams.set("q", typed);
  const text = await textOf(url);
  if (!text || input.value !== typed) return;
  const head = typed.slice(0, typed.lastIndexOf(" ") + 1);
  const { items } = JSON.parse(text);
  completions.replaceChildren(...items.map((item) => new Option("", head + item)));
}

for (const input of all("[data-complete]")) input.setAttribute("list", completions.id);

/* -- copy; plain HTTP pages have no clipboard API, so they copy from a selected text area */

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
  if (copyFrom) text = await textOf(copyFrom);
  toast(text && (await copy(text)) ? "Copied" : "Copying failed");
}

/* -- dialogs: show the section of a confirmation page on this page */

async function openConfirm(link) {
  const page = new DOMParser().parseFromString(await textOf(link.href), "text/html");
  const section = one(".confirm", page);
  if (!section) return location.assign(link.href); // let the page itself show the error
  const dialog = added("dialog", "dialog");
  dialog.append(document.importNode(section, true));
  showInZone(dialog);
  for (const next of all("input[name=next]", dialog)) next.value = location.pathname + location.search;
  dialog.addEventListener("submit", sendConfirm);
  dialog.addEventListener("close", () => { dialog.remove(); link.focus(); });
  dialog.showModal();
  one("[data-cancel]", dialog)?.focus();
}

// If the form is refused, the dialog stays, with what was typed and the reason.
async function sendConfirm(event) {
  const { target: form, submitter } = event;
  if (!form.closest(".confirm")) return;
  event.preventDefault();
  submitter.disabled = true;
  const body = new URLSearchParams(new FormData(form, submitter));
  const answer = await fetch(form.action, { method: "POST", body, headers: { "X-Dialog": "yes" } }).catch(() => null);
  const to = answer?.headers.get("X-Location");
  if (to) return location.assign(to);
  const section = answer && one("main section", new DOMParser().parseFromString(await answer.text(), "text/html"));
  submitter.disabled = false;
  if (!section) return toast("The broker did not answer. The action may still take effect.");
  form.closest(".confirm").replaceWith(document.importNode(section, true));
}

/* -- lists: rows and checkboxes */

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

function tickAll(every) {
  for (const box of boxes(every.form)) box.checked = every.checked;
  showSelected(every.form);
}

function toggleBox(isRange) {
  const row = rowOf();
  const box = row && one(".tick input", row);
  if (!box) return;
  box.checked = isRange || !box.checked;
  tick(box, isRange);
}

const rowOf = (node = document.activeElement) => node?.closest("main tbody tr");
const linkOf = (row) => one(".lead a", row) ?? one("a", row);

function focusRow(row) {
  const target = linkOf(row) ?? one("button, input", row) ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus({ focusVisible: true });
  row.scrollIntoView({ block: "nearest" });
}

function walk(step) {
  const list = all("table.list tbody tr", main).filter((r) => r.checkVisibility());
  const next = list[list.indexOf(rowOf()) + step];
  if (next) focusRow(next);
}

// Pressing Esc on a page that was opened from a row returns to that row.
const trail = stored("sessionStorage");
const walked = () => JSON.parse(trail.phpmq ?? "{}");

function remember(link) {
  trail.phpmq = JSON.stringify({ list: location.href, row: link.href });
}

function goBack() {
  const { list, row } = walked();
  if (list && new URL(row).pathname === location.pathname && list !== location.href) {
    trail.phpmq = JSON.stringify({ list, row, back: true });
    location.assign(list);
  } else all(".crumb a").at(-1)?.click();
}

function comeBack() {
  const { list, row, back } = walked();
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
  const row = rowOf();
  let target = row && one(selector, row);
  if (!target) {
    if (row && "r#e".includes(key) && !one("tbody :checked", row.closest("table"))) toggleBox(false);
    target = all(selector).find((node) => !rowOf(node) && node.checkVisibility());
  }
  if (!target || target.disabled) return false;
  if (target.matches(TYPED)) target.focus();
  else target.click();
  return true;
}

async function copyId() {
  const id = one("[data-message]", rowOf() ?? main)?.dataset.message;
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
    event.preventDefault(); // prevent Enter from pressing the list's first button
    linkOf(rowOf(event.target))?.click();
  }
  if (event.key === "Escape" && one("details.menu[open]")) return closeMenus();
  if (event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]") || choice("keys") === "off") return;
  if (isTyping) return event.key === "Escape" && event.target.blur();
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

/* -- one click listener: the first match handles the click */

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
  "[data-select-all]": tickAll,
  "tbody .tick input": (box, event) => tick(box, event.shiftKey),
  "main tbody tr a": remember,
};

document.addEventListener("click", (event) => {
  const { target } = event;
  closeMenus(target.closest("details.menu"));
  if (target.matches("dialog")) target.close(); // a click on the backdrop
  const fits = (selector) => target.closest(selector);
  const selector = Object.keys(CLICKS).find(fits);
  if (selector && !(event.ctrlKey || event.metaKey)) CLICKS[selector](fits(selector), event);
});
document.addEventListener("keydown", onKey);
document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-tail-filter]")) filterTail();
  if (target.matches("[data-complete]")) complete(target);
});
for (const form of all("form.select")) showSelected(form);
one(".rail [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
comeBack();
