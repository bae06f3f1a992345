// Numbers as people read them, and small helpers for elements. All text enters the page as text.

const group = (number) => Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ",");

const counted = (number, one) => `${group(number)} ${one}${number === 1 ? "" : "s"}`;

/** A size with two decimals, ties to even; 1024 of a unit are one of the next. */
function bytesText(bytes) {
  if (bytes < 1024) return counted(bytes, "byte");
  let size = bytes;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    size /= 1024;
    // Dividing by powers of two is exact, so this is exact for every size a device can have.
    let hundredths = Math.floor(size * 100);
    const rest = size * 100 - hundredths;
    if (rest > 0.5 || (rest === 0.5 && hundredths % 2 === 1)) hundredths += 1;
    if (hundredths >= 102400 && unit !== "GiB") continue;
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

/** A step of 1, 2 or 5 times a power of ten. */
function roundStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
