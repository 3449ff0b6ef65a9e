/* All texts with a digit that a person can read on the page: [place, text], in document order.
   A place is "section | row | column" of a cell, "section | | term" of a fact, and otherwise
   "section | | tag.class".  Bodies, code and names that people chose are quoted, not counted. */
(quoted) => {
  const clean = (text) => (text ?? "").replace(/\s+/g, " ").trim();
  const label = (node) => {
    const box = node.closest("section, figure, dialog, form, header, footer, nav, main");
    if (!box) return "";
    const id = box.getAttribute("aria-labelledby")?.split(" ")[0];
    return clean(box.getAttribute("aria-label") ?? document.getElementById(id)?.textContent
      ?? box.querySelector("h2, .chart-title")?.textContent ?? box.className ?? box.tagName);
  };
  const place = (node) => {
    const cell = node.closest("td, th");
    if (cell && cell.closest("tbody")) {
      const row = cell.parentElement;
      const head = row.querySelector("[data-message], th .name, .lead .name, .lead, th") ?? row.cells[0];
      const titles = cell.closest("table").tHead?.rows[0].cells ?? [];
      const column = node.closest("[title^='Free credit']") ? "Free credit" : cell.dataset.label ?? titles[cell.cellIndex]?.textContent;
      return [label(cell), clean(head?.textContent), clean(column)];
    }
    const fact = node.closest("dl > div");
    if (fact) return [label(fact), "", clean(fact.querySelector("dt")?.textContent)];
    const kind = node.tagName.toLowerCase() + [...node.classList].map((one) => `.${one}`).join("");
    const item = node.closest("li");
    return [label(node), clean(item?.querySelector(".name")?.textContent ?? item?.className), kind];
  };
  const all = (within, selector) => [...within.querySelectorAll(selector)];
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, text = clean(walk.currentNode.data);
    if (!/\d/.test(text) || node.closest(quoted)) continue;
    const time = node.closest("time");
    const more = node.matches("summary") ? `|${all(node.parentElement, "li").length}` : "";
    found.push([...place(node), time ? `${time.dateTime}|${text}` : text + more]);
  }
  for (const node of all(document, "[title], [aria-label], progress, meter, input[type=number]")) {
    const values = [node.title, node.ariaLabel, node.value === undefined ? "" : String(node.value)];
    for (const text of values.map(clean))
      if (/\d/.test(text) && !node.closest(quoted) && !node.matches("time, button, option, li, input:not([type=number])"))
        found.push([...place(node), text]);
  }
  return found;
}
