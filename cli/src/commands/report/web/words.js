// Numbers as people read them, and small helpers for elements and canvases. All text enters the page as text.

const group = (number) => Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ",");

const counted = (number, one) => `${group(number)} ${one}${number === 1 ? "" : "s"}`;

/** A size as PyTorch prints it: each unit up to and including 1024 of it, ties to even. */
function bytesText(bytes) {
  if (bytes <= 1024) return `${group(bytes)} bytes`;
  let size = bytes;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    size /= 1024;
    if (size > 1024 && unit !== "GiB") continue;
    // Dividing by powers of two is exact, so this is exact for every size a device can have.
    let hundredths = Math.floor(size * 100);
    const rest = size * 100 - hundredths;
    if (rest > 0.5 || (rest === 0.5 && hundredths % 2 === 1)) hundredths += 1;
    return `${(hundredths / 100).toFixed(2)} ${unit}`;
  }
  return "";
}

/** A round size, for an axis. */
function axisBytes(bytes) {
  if (bytes === 0) return "0";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= size) return `${+(bytes / size).toFixed(2)} ${unit}`;
  }
  return `${bytes} B`;
}

function durationText(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(us < 1e7 ? 3 : 2)} s`;
  return `${Math.floor(us / 6e7)} min ${((us % 6e7) / 1e6).toFixed(1)} s`;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") made.style.cssText = value; else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Rows of a table: a label and values. */
const rows = (list) => element("table", {}, element("tbody", {}, ...list.map(([label, ...values]) => element("tr", {},
  element("td", {}, label), ...values.map((value, i) => element("td", i ? {} : { class: "number" }, value))))));

const swatch = (colour) => element("i", { style: `background:${colour}` });

const theme = { colours: {} };

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bg", "card", "ink", "muted", "faint", "line", "accent", "allocated", "allocated-soft", "active", "reserved", "reserved-line", "free",
    "free-line", "pending", "bad", "retry", "empty", "phase", "light"]) theme.colours[name] = style.getPropertyValue(`--${name}`).trim();
}

/** Fits a canvas to the resolution of the screen; returns its context and size. */
function prepare(canvas, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif";
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

const tip = {
  show(event, ...content) {
    const box = document.querySelector(".tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 16;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, Math.min(innerHeight - height - 6, event.clientY + 14))}px`;
  },
  hide() { document.querySelector(".tip").hidden = true; },
};

/** A step of 1, 2 or 5 times a power of ten. */
function roundStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
