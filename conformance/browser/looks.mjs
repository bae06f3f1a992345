// What a designer would look at, as checks in the browser: colours that no legend explains, text that is too small or too pale, and
// anything wider than the screen.

/** To be run before a page's own script: notes with which colours each canvas is drawn. Words do not count. */
export function watchColours() {
  const seen = new WeakMap();
  const note = (context, style) => { if (typeof style === "string") colours(context.canvas).add(style); };
  const colours = (canvas) => { if (!seen.has(canvas)) seen.set(canvas, new Set()); return seen.get(canvas); };
  const { prototype } = CanvasRenderingContext2D;
  const wrap = (name, before) => {
    const original = prototype[name];
    prototype[name] = function (...values) { before(this, values); return original.apply(this, values); };
  };
  for (const name of ["fillRect", "fill"]) wrap(name, (context) => note(context, context.fillStyle));
  for (const name of ["strokeRect", "stroke"]) wrap(name, (context) => note(context, context.strokeStyle));
  wrap("clearRect", (context) => colours(context.canvas).clear());
  wrap("drawImage", (context, [picture]) => { for (const colour of seen.get(picture) ?? []) colours(context.canvas).add(colour); });
  window.coloursOf = (canvas) => [...colours(canvas)];
}

/** The colours of a canvas that none of the legends, given as selectors of their signs, has. */
export function unexplained(page, canvas, signs) {
  return page.evaluate(([canvas, signs]) => {
    const section = document.querySelector("section.examined");
    const scratch = document.createElement("canvas").getContext("2d");
    const plain = (colour) => { scratch.fillStyle = "#000"; scratch.fillStyle = colour; return scratch.fillStyle; };
    const of = (sign) => getComputedStyle(sign).getPropertyValue("--c").trim() || getComputedStyle(sign).backgroundColor;
    const explained = new Set([...section.querySelectorAll(signs)].map((sign) => plain(of(sign))));
    // Lines of the grid, the outlines of free memory, and the veil over what is not zoomed.
    const root = getComputedStyle(document.documentElement);
    for (const name of ["line", "free-line", "card"]) explained.add(plain(root.getPropertyValue(`--${name}`).trim()));
    return window.coloursOf(section.querySelector(canvas)).filter((colour) => !explained.has(plain(colour)));
  }, [canvas, signs]);
}

/** Visible text that is smaller than so many pixels, or whose contrast is below what WCAG 2 asks for (4.5, or 3 for large text). */
export function unreadable(page, leastPixels) {
  return page.evaluate((leastPixels) => {
    const parse = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
    const luminance = ([r, g, b]) => {
      const linear = (part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
      return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    };
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
      const words = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent.trim()).join("");
      if (!words || element.disabled || !element.checkVisibility({ visibilityProperty: true })) continue;
      const style = getComputedStyle(element);
      const size = parseFloat(style.fontSize);
      const [one, other] = [luminance(parse(style.color)), luminance(behind(element))].sort((a, b) => b - a);
      const contrast = (one + 0.05) / (other + 0.05);
      if (size < leastPixels) found.push(`${size.toFixed(1)} px: ${words.slice(0, 40)}`);
      if (contrast < (size >= 24 ? 3 : 4.5)) found.push(`contrast ${contrast.toFixed(2)}: ${words.slice(0, 40)}`);
    }
    return [...new Set(found)];
  }, leastPixels);
}

/** What reaches beyond the right edge of the screen, except in areas that scroll by themselves. */
export function tooWide(page) {
  return page.evaluate(() => {
    const { clientWidth, scrollWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = [...document.querySelectorAll("body *")].filter((element) => element.getBoundingClientRect().right > clientWidth + 1);
    return [`${scrollWidth} pixels`, ...wide.slice(0, 4).map((element) => `${element.tagName.toLowerCase()}.${element.className}`)];
  });
}
