/* Helpers shared by the other scripts.  Texts are inserted only as textContent. */

export const one = (selector, within = document) => within.querySelector(selector);
export const all = (selector, within = document) => [...within.querySelectorAll(selector)];
export const main = one("#main");
export const number = (count) => count.toLocaleString("en");

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function added(tag, className) {
  const node = document.createElement(tag);
  node.className = className;
  (one("dialog[open]") ?? document.body).append(node);
  return node;
}

export function toast(text) {
  one(".toast")?.remove();
  const node = added("p", "toast");
  node.textContent = text;
  setText(one("#says"), text);
  setTimeout(() => node.remove(), 2500);
}

export function stored(kind) {
  try {
    return window[kind];
  } catch {
    return {}; // storage is blocked, so choices last for this page only
  }
}
