// Drawing: the colours of the theme, canvases at the resolution of the screen, legends, tips.

/** What all graphs of the page share: the theme's colours, and the size of text in units of 16 pixels, which grows on large screens. */
const theme = { colours: {}, unit: 1 };

const THEME_COLOURS = ["card", "ink", "muted", "line", "accent", "allocated", "allocated-soft", "active", "reserved", "reserved-line", "free", "free-line",
  "pending", "bad", "retry", "empty"];

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of THEME_COLOURS) theme.colours[name] = style.getPropertyValue(`--${name}`).trim();
  theme.unit = (parseFloat(style.fontSize) || 16) / 16;
}

const px = (length) => length * theme.unit;

const font = (size) => `${px(size)}px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif`;

/** Fits a canvas to the resolution of the screen; returns its context and size. */
function prepare(canvas, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = font(12);
  return { context, width, height };
}

/** Calls `draw` at most once per frame. */
function onFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}

/** A dashed line with words above it. */
function dashed(context, [from, to], y, words, colour) {
  context.strokeStyle = context.fillStyle = colour;
  context.setLineDash([px(6), px(4)]);
  context.lineWidth = px(1);
  context.beginPath();
  context.moveTo(from, y);
  context.lineTo(to, y);
  context.stroke();
  context.setLineDash([]);
  context.textAlign = "left";
  context.textBaseline = "bottom";
  context.fillText(words, from + px(6), y - px(3));
}

const swatch = (colour) => element("i", { style: `background:${colour}` });

/** A row of a legend; `shape` is a class of its sign: mark, dash, line, frame, bar. */
const legendRow = (words, colour, shape = null) => element("span", {}, element("i", { class: shape, style: `--c:${colour}` }), words);

/** Shows these rows, `[words, colour, shape]`, unless they are shown already. */
function showLegend(box, list) {
  const name = JSON.stringify(list);
  if (box.dataset.rows === name) return;
  box.dataset.rows = name;
  box.replaceChildren(...list.map((row) => legendRow(...row)));
}

/** A box that follows the pointer. */
const tip = {
  show(event, ...content) {
    const box = document.querySelector(".tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const { clientWidth } = document.documentElement;
    const left = event.clientX + 16 + width > clientWidth ? event.clientX - 14 - width : event.clientX + 16;
    box.style.left = `${Math.max(4, Math.min(left, clientWidth - width - 4))}px`;
    box.style.top = `${Math.max(4, Math.min(innerHeight - height - 6, event.clientY + 14))}px`;
  },
  hide() { document.querySelector(".tip").hidden = true; },
};
