/* Return the unusable controls of this page at the width of the window, and the keys of all usable
   controls: ({known}) => ({wrong: ["kind: control, figures"], keys: [...]}).
   `known`: the keys at another width; controls missing from this page are wrong too, and so are
   short values with line breaks and panels that show only a part of their list.
   Boxes of lists are ticked, details and dialogs opened, to test hidden controls as well. */
({ known }) => {
  const CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  const SLACK = 1; // pixels: borders are rounded
  const LEGIBLE = 24; // pixels visible before an ellipsis
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const ROWS = 6; // of a list, besides its last two, that are tested for overlaps
  const wrong = [];
  const usable = new Set();

  const isShown = (node) => {
    const { width, height } = node.getBoundingClientRect();
    return width > 0 && height > 0 && !node.matches(".skip, .sr")
      && node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  };
  const path = (url) => { const { pathname, search } = new URL(url, location.href); return pathname + search; };
  const text = (node) => node.textContent.replace(/\s+/g, " ").trim().slice(0, 40);
  function key(node) {
    if (node.href) return `a ${path(node.href.baseVal ?? node.href)}`;
    const form = node.form?.getAttribute("action") ?? "";
    return `${node.tagName.toLowerCase()} ${form} ${node.name ?? ""}=${node.type === "text" ? "" : node.value ?? ""} ${text(node)}`;
  }

  const styles = new Map();
  function clipOf(node) {
    if (!styles.has(node)) {
      const { overflowX, overflowY, textOverflow } = getComputedStyle(node);
      styles.set(node, overflowX === "visible" && overflowY === "visible" ? null
        : { overflowX, overflowY, textOverflow });
    }
    return styles.get(node);
  }
  const scrolls = (overflow) => overflow === "auto" || overflow === "scroll";

  // The visible box of a control within its clipping ancestors, or the reason why it is not visible.
  // Ancestors that scroll can bring the control into view.
  function seenOf(node) {
    let { left, right, top, bottom } = node.getBoundingClientRect();
    for (let box = node.parentElement; box && box !== document.body; box = box.parentElement) {
      const clip = clipOf(box);
      if (!clip) continue;
      const outer = box.getBoundingClientRect();
      if (scrolls(clip.overflowX)) [left, right] = [Math.max(left, outer.left), Math.min(right, outer.right)];
      else if (clip.overflowX !== "visible" && (left < outer.left - SLACK || right > outer.right + SLACK)) {
        const width = Math.min(right, outer.right) - Math.max(left, outer.left);
        if (clip.textOverflow !== "ellipsis" || width < LEGIBLE) return `clipped by ${named(box)}, ${Math.round(width)} of ${Math.round(right - left)} px`;
        [left, right] = [Math.max(left, outer.left), Math.min(right, outer.right)];
      }
      if (scrolls(clip.overflowY)) [top, bottom] = [Math.max(top, outer.top), Math.min(bottom, outer.bottom)];
      else if (clip.overflowY !== "visible" && (top < outer.top - SLACK || bottom > outer.bottom + SLACK)) {
        return `clipped by ${named(box)} at top or bottom`;
      }
    }
    if (left < -SLACK || right > innerWidth + SLACK) return `outside: ${Math.round(left)} to ${Math.round(right)} of ${innerWidth} px`;
    return { left, right, top, bottom };
  }
  const named = (node) => `${node.tagName.toLowerCase()}${node.className && typeof node.className === "string" ? `.${node.className.split(" ").join(".")}` : ""}`;

  function troubleOf(node) {
    const row = node.closest("tbody > tr");
    const isRepeated = row?.sectionRowIndex >= ROWS && row.nextElementSibling?.nextElementSibling;
    if (isRepeated) { // measured like the others, but not scrolled to
      const seen = seenOf(node);
      return typeof seen === "string" ? seen : "";
    }
    node.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
    scrollTo(0, scrollY); // a page that is too wide must not scroll sideways
    const seen = seenOf(node);
    if (typeof seen === "string") return seen;
    const [line] = node.getClientRects(); // the first line of a text
    const x = (Math.max(line.left, seen.left, 0) + Math.min(line.right, seen.right, innerWidth)) / 2;
    const y = (Math.max(line.top, seen.top, 0) + Math.min(line.bottom, seen.bottom, innerHeight)) / 2;
    const hit = document.elementFromPoint(x, y);
    if (hit && (node.contains(hit) || hit.closest("label")?.control === node)) return "";
    return `overlapped by ${hit ? `${named(hit)} "${text(hit)}"` : "nothing that is seen"} at ${Math.round(x)}, ${Math.round(y)}`;
  }

  function look(within, isListed = () => true) {
    for (const node of all(CONTROLS, within)) {
      if (!isListed(node) || !isShown(node)) continue;
      const trouble = troubleOf(node);
      if (trouble) wrong.push(`${key(node)}: ${trouble}`);
      else usable.add(key(node));
    }
  }

  scrollTo(0, 0);
  for (const each of all("details:not(.menu)")) each.open = true;
  for (const form of all("form.select")) {
    const box = form.querySelector("tbody .tick input");
    if (box && !box.checked) box.click();
  }
  // Colours move nothing: if all controls are in the same places, the result is the same.
  const places = all(CONTROLS).map((node) => Object.values(node.getBoundingClientRect().toJSON()).join()).join();
  if (places === window.placesSeen) return { wrong: [], keys: known };
  window.placesSeen = places;
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`page: ${wide} px wide, the window has ${innerWidth}`);
  for (const panel of all(".panel")) {
    if (getComputedStyle(panel).overflowX === "clip" && panel.scrollWidth > panel.clientWidth + SLACK) {
      wrong.push(`${named(panel)}: shows ${panel.clientWidth} of ${panel.scrollWidth} px`);
    }
  }
  for (const value of all(".all")) {
    const lines = new Set([...value.getClientRects()].map(({ top }) => Math.round(top)));
    if (lines.size > 1 && isShown(value) && /^\S{1,24}$/.test(value.textContent)) wrong.push(`${value.textContent}: broken over ${lines.size} lines`);
  }
  look(document, (node) => !node.closest(".menu-box, dialog"));
  for (const menu of all("details.menu")) {
    menu.open = true;
    look(menu, (node) => node.closest(".menu-box"));
    menu.open = false;
  }
  for (const dialog of all("dialog")) {
    dialog.showModal();
    look(dialog);
    dialog.close();
  }
  scrollTo(0, 0);
  for (const one of known ?? []) if (!usable.has(one)) wrong.push(`${one}: not there`);
  return { wrong: [...new Set(wrong)], keys: [...usable] };
}
