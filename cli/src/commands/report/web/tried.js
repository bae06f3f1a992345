// What reserved memory would have been under other settings, one line each.

const LINES = ["#3b6fd8", "#c5303a", "#1d9a6c", "#b06ad0", "#d58a1c", "#2aa5c4", "#8a6d4b", "#d4588e"];

class TriedChart {
  constructor(section, run) {
    this.run = run;
    this.canvas = section.querySelector("canvas.tried");
    this.hover = null;
    this.marked = null;
    this.draw = onFrame(() => this.paint());
    this.rows = [...section.querySelectorAll("[data-tried]")];
    for (const row of this.rows) {
      const number = Number(row.dataset.tried);
      row.querySelector(".swatch").style.background = LINES[number % LINES.length];
      row.addEventListener("pointerenter", () => { this.marked = number; this.draw(); });
      row.addEventListener("pointerleave", () => { this.marked = null; this.draw(); });
    }
    this.canvas.addEventListener("pointermove", (event) => { this.hover = event.clientX - this.canvas.getBoundingClientRect().left; this.hint(event); this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.hover = null; tip.hide(); this.draw(); });
    this.draw();
  }

  moments(px) {
    const at = (x) => ((x - LEFT) / (this.width - LEFT - RIGHT)) * this.run.moments;
    const clamp = (m) => Math.max(0, Math.min(this.run.entries, Math.floor(m)));
    return [clamp(at(px)), Math.max(clamp(at(px)), clamp(Math.ceil(at(px + 1)) - 1))];
  }

  hint(event) {
    if (this.hover < LEFT || this.hover > this.width - RIGHT) return tip.hide();
    const [first, last] = this.moments(this.hover);
    const value = (curve) => bytesText(curve.range(first, last)[1]);
    const list = this.run.tried.map((tried, i) => [element("span", {}, swatch(LINES[i % LINES.length]), tried.label.slice(0, 60)), value(tried.curve)]);
    list.push([element("span", {}, swatch("var(--reserved)"), "recorded"), value(this.run.levels.reserved)]);
    tip.show(event, element("div", {}, element("b", {}, `after ${group(first)} entries`)), rows(list));
  }

  paint() {
    const { context, width, height } = prepare(this.canvas);
    if (!width || !this.run.tried.length) return;
    this.width = width;
    const { run } = this;
    const { colours } = theme;
    const peak = (curve) => curve.range(0, run.entries)[1];
    const top = Math.max(1, run.meta.capacity_bytes ?? 0, peak(run.overview.reserved), ...run.tried.map((tried) => peak(tried.curve))) * 1.05;
    const bottom = height - 24;
    const y = (bytes) => bottom - (bytes / top) * (bottom - 6);
    const step = 2 ** Math.ceil(Math.log2(top / 5));
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let bytes = 0; bytes <= top; bytes += step) {
      context.fillStyle = colours.line;
      context.fillRect(LEFT, Math.round(y(bytes)), width - LEFT - RIGHT, 1);
      context.fillStyle = colours.muted;
      context.fillText(axisBytes(bytes), LEFT - 8, y(bytes));
    }
    context.textAlign = "center";
    const entriesStep = Math.max(1, roundStep(run.moments, Math.max(2, width / 150)));
    for (let at = 0; at <= run.entries; at += entriesStep) context.fillText(group(at), Math.min(width - 24, LEFT + (at / run.moments) * (width - LEFT - RIGHT)), bottom + 14);
    const count = Math.ceil(width - LEFT - RIGHT);
    const spans = Array.from({ length: count }, (_, i) => this.moments(LEFT + i));
    context.fillStyle = colours.reserved;
    spans.forEach(([first, last], i) => {
      const tall = y(run.levels.reserved.range(first, last)[1]);
      context.fillRect(LEFT + i, tall, 1, bottom - tall);
    });
    // The run's own is the first, and lies on top.
    for (let number = run.tried.length - 1; number >= 0; number -= 1) this.line(context, run.tried[number], number, spans, y);
    const capacity = run.meta.capacity_bytes;
    if (capacity) {
      context.strokeStyle = context.fillStyle = colours.bad;
      context.setLineDash([6, 4]);
      context.beginPath();
      context.moveTo(LEFT, y(capacity));
      context.lineTo(width - RIGHT, y(capacity));
      context.stroke();
      context.setLineDash([]);
      context.textAlign = "left";
      context.textBaseline = "bottom";
      context.fillText(`capacity ${bytesText(capacity)}`, LEFT + 6, y(capacity) - 3);
    }
    if (this.hover >= LEFT && this.hover <= width - RIGHT && this.hover !== null) {
      context.globalAlpha = 0.35;
      context.fillStyle = colours.ink;
      context.fillRect(Math.round(this.hover), 4, 1, bottom - 4);
      context.globalAlpha = 1;
    }
  }

  line(context, tried, number, spans, y) {
    const isMarked = this.marked === number;
    context.globalAlpha = this.marked === null || isMarked ? 1 : 0.2;
    context.strokeStyle = LINES[number % LINES.length];
    context.lineWidth = isMarked ? 2.5 : 1.5;
    context.lineJoin = "round";
    context.beginPath();
    spans.forEach(([first, last], i) => {
      const [least, most] = tried.curve.range(first, last);
      context[i ? "lineTo" : "moveTo"](LEFT + i, y(most));
      if (least < most) context.lineTo(LEFT + i + 0.5, y(least));
    });
    context.stroke();
    if (tried.fails_at_entry !== null) {
      const x = LEFT + (tried.fails_at_entry / this.run.moments) * spans.length;
      const high = y(tried.curve.range(tried.fails_at_entry, tried.fails_at_entry)[1]);
      context.lineWidth = 2.5;
      context.beginPath();
      context.moveTo(x - 5, high - 5);
      context.lineTo(x + 5, high + 5);
      context.moveTo(x + 5, high - 5);
      context.lineTo(x - 5, high + 5);
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
