// What reserved memory would have been under other settings, one line each.

class TriedChart extends Plot {
  constructor(section, run) {
    super();
    this.run = run;
    this.width = 1;
    this.key = section.querySelector(".tried-legend");
    this.canvas = section.querySelector("canvas.tried");
    this.hover = null;
    this.marked = null;
    this.draw = onFrame(() => this.paint());
    this.rows = [...section.querySelectorAll("[data-tried]")];
    for (const row of this.rows) {
      const number = Number(row.dataset.tried);
      row.querySelector(".swatch").style.background = this.colour(number);
      row.addEventListener("pointerenter", () => { this.marked = number; this.draw(); });
      row.addEventListener("pointerleave", () => { this.marked = null; this.draw(); });
    }
    this.canvas.addEventListener("pointermove", (event) => { this.hover = event.clientX - this.canvas.getBoundingClientRect().left; this.hint(event); this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.hover = null; tip.hide(); this.draw(); });
    this.draw();
  }

  colour(number) {
    const { settings } = this.run.meta.palette;
    return settings[number % settings.length];
  }

  moments(x) {
    const at = (x) => ((x - this.left) / this.inner) * this.run.moments;
    const clamp = (m) => Math.max(0, Math.min(this.run.entries, Math.floor(m)));
    return [clamp(at(x)), Math.max(clamp(at(x)), clamp(Math.ceil(at(x + 1)) - 1))];
  }

  hint(event) {
    if (this.hover < this.left || this.hover > this.right) return tip.hide();
    const [first, last] = this.moments(this.hover);
    const value = (curve) => bytesText(curve.range(first, last)[1]);
    const list = this.run.tried.map((tried, i) => [element("span", {}, swatch(this.colour(i)), tried.label.slice(0, 60)), value(tried.curve)]);
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
    const top = Math.max(1, run.meta.tried_bytes ?? 0, peak(run.overview.reserved), ...run.tried.map((tried) => peak(tried.curve))) * 1.05;
    const bottom = height - px(24);
    const y = (bytes) => bottom - (bytes / top) * (bottom - px(6));
    this.paintSizes(context, top, y);
    const places = [];
    const step = Math.max(1, roundStep(run.moments, Math.max(2, this.inner / px(65))));
    for (let at = 0; at <= run.entries; at += step) places.push([this.left + (at / run.moments) * this.inner, group(at)]);
    this.paintPlaces(context, places, bottom + px(8));
    const spans = Array.from({ length: Math.ceil(this.inner) }, (_, i) => this.moments(this.left + i));
    context.fillStyle = colours.reserved;
    spans.forEach(([first, last], i) => {
      const tall = y(run.levels.reserved.range(first, last)[1]);
      context.fillRect(this.left + i, tall, 1, bottom - tall);
    });
    // The run's own is the first, and lies on top.
    for (let number = run.tried.length - 1; number >= 0; number -= 1) this.line(context, run.tried[number], number, spans, y);
    const { tried_bytes: limit, limit_is_assumed: isAssumed } = run.meta;
    if (limit) dashed(context, [this.left, this.right], y(limit), `memory ${axisBytes(limit)}${isAssumed ? ", assumed" : ""}`, colours.bad);
    this.paintHover(context, px(4), bottom);
    this.explain();
  }

  /** The table explains the lines, this the rest. */
  explain() {
    const { tried, meta } = this.run;
    const { colours } = theme;
    const list = [["reserved in the recording", colours.reserved]];
    if (tried.some((one) => one.fails_at_entry !== null)) list.push(["a request fails here", colours.muted, "cross"]);
    if (meta.tried_bytes) list.push([meta.limit_is_assumed ? "memory, assumed" : "memory", colours.bad, "dash"]);
    showLegend(this.key, list);
  }

  line(context, tried, number, spans, y) {
    const isMarked = this.marked === number;
    context.globalAlpha = this.marked === null || isMarked ? 1 : 0.2;
    context.strokeStyle = this.colour(number);
    context.lineWidth = px(isMarked ? 2.5 : 1.5);
    context.lineJoin = "round";
    context.beginPath();
    spans.forEach(([first, last], i) => {
      const [least, most] = tried.curve.range(first, last);
      context[i ? "lineTo" : "moveTo"](this.left + i, y(most));
      if (least < most) context.lineTo(this.left + i + 0.5, y(least));
    });
    context.stroke();
    if (tried.fails_at_entry !== null) {
      const x = this.left + (tried.fails_at_entry / this.run.moments) * spans.length;
      const high = y(tried.curve.range(tried.fails_at_entry, tried.fails_at_entry)[1]);
      context.lineWidth = px(2.5);
      context.beginPath();
      const arm = px(5);
      context.moveTo(x - arm, high - arm);
      context.lineTo(x + arm, high + arm);
      context.moveTo(x + arm, high - arm);
      context.lineTo(x - arm, high + arm);
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
