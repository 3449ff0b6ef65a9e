/* Return the texts of this page that overlap another one, stick out of their box or are cut off.
   Numbers are made eight digits long first: those that the broker formats are already.
   A text may end in an ellipsis or scroll; a number must be readable as a whole. */
() => {
  const SLACK = 1.5; // pixels: borders are rounded
  const SKIPPED = ".sr, .skip, dialog, .menu-box, script, style, template, noscript, option, select, textarea, datalist, kbd, title";
  const wrong = new Set();
  for (const each of document.querySelectorAll("main details")) each.open = true;

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.data.trim() && !node.parentElement.closest(SKIPPED)) nodes.push(node);
  }
  for (const node of nodes) {
    if (/^\s*[#\d]\d*\s*$/.test(node.data) && !node.parentElement.closest("ol.frames, pre, .doc")) {
      node.data = node.data.replace(/\d+/, "12345678");
    }
  }

  const short = (text) => text.replace(/\s+/g, " ").trim().slice(0, 40);
  const named = (node) => node.tagName.toLowerCase() + (node.classList.length ? `.${[...node.classList].join(".")}` : "");
  const isNumber = (text) => /^[#\d][\d,.]*( ?(ms|s|B|[KMGT]iB))?$/.test(text.trim());
  const styles = new Map();
  const styleOf = (node) => {
    if (!styles.has(node)) styles.set(node, getComputedStyle(node));
    return styles.get(node);
  };
  const scrolls = (overflow) => overflow === "auto" || overflow === "scroll";

  // An element, or else its nearest ancestor, that clips its content; each is measured once.
  const clips = new Map();
  function clipOf(box) {
    if (!box || box === document.body) return null;
    if (!clips.has(box)) {
      const { overflowX, overflowY, textOverflow, clipPath } = styleOf(box);
      const next = clipOf(box.parentElement);
      const isOpen = clipPath === "none" && overflowX === "visible" && overflowY === "visible";
      clips.set(box, isOpen ? next : { box, overflowX, overflowY, textOverflow, clipPath, outer: box.getBoundingClientRect(), next });
    }
    return clips.get(box);
  }

  // The visible part of a rectangle, or null if an ancestor hides it; clipped parts are reported.
  function seen(rect, node) {
    let { left, right, top, bottom } = rect;
    for (let clip = clipOf(node.parentElement); clip; clip = clip.next) {
      const { box, overflowX, overflowY, textOverflow, clipPath, outer } = clip;
      if (clipPath !== "none") return null;
      const isCut = overflowX !== "visible" && !scrolls(overflowX) && (left < outer.left - SLACK || right > outer.right + SLACK);
      if (isCut && (textOverflow !== "ellipsis" || isNumber(node.data))) wrong.add(`"${short(node.data)}" is cut off by ${named(box)}`);
      if (overflowX !== "visible") [left, right] = [Math.max(left, outer.left), Math.min(right, outer.right)];
      if (overflowY !== "visible") [top, bottom] = [Math.max(top, outer.top), Math.min(bottom, outer.bottom)];
      if (right - left < 1 || bottom - top < 1) return null;
    }
    return { left, right, top, bottom };
  }

  const boxes = [];
  for (const node of nodes) {
    const owner = node.parentElement;
    if (!owner.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let block = owner;
    while (styleOf(block).display.startsWith("inline") && !/flex|grid|block/.test(styleOf(block).display)) block = block.parentElement;
    const outer = block.getBoundingClientRect();
    // White space at the end of a line of pre-wrap hangs over the edge and is not seen.
    const slack = SLACK + (styleOf(owner).whiteSpace.endsWith("pre-wrap") ? parseFloat(styleOf(owner).fontSize) : 0);
    const isOwnScroll = [styleOf(block).overflowX, styleOf(block).overflowY].some((each) => each !== "visible");
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue;
      const part = seen(rect, node);
      if (!part) continue;
      if (!node.parentElement.closest("svg") && !isOwnScroll && (part.right > outer.right + slack || part.left < outer.left - SLACK)) {
        wrong.add(`"${short(node.data)}" sticks out of ${named(block)} by ${Math.round(Math.max(part.right - outer.right, outer.left - part.left))} px`);
      }
      if (part.right > innerWidth + SLACK || part.left < -SLACK) wrong.add(`"${short(node.data)}" is outside the window`);
      boxes.push({ ...part, node });
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((one, at) => {
    for (let next = at + 1; next < boxes.length && boxes[next].top < one.bottom; next++) {
      const other = boxes[next];
      const width = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const height = Math.min(one.bottom, other.bottom) - other.top;
      if (one.node !== other.node && width > SLACK && height > 5) {
        wrong.add(`"${short(one.node.data)}" overlaps "${short(other.node.data)}" by ${Math.round(width)} × ${Math.round(height)} px in ${named(one.node.parentElement.closest("table, dl, ol, ul, form, figure, section, main, header, footer, body"))}`);
      }
    }
  });
  return [...wrong];
}
