// What reserved memory would have been under other settings, one line each. For a run that died, the lines continue, dashed, over the
// estimated rest.

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

  /** The last moment that the file has of what is drawn: the end, or the error of which the run died. */
  get end() { return this.run.rest ? this.run.rest.died_at + 1 : this.run.entries; }

  /** The share of the width that the file takes; an estimate takes no more than half. */
  get share() { return this.run.rest ? Math.max(0.5, this.end / this.run.drawn) : 1; }

  /** Pixels of a moment. */
  x(moment) {
    const { end, share } = this;
    if (!this.run.rest) return this.left + (moment / this.run.drawn) * this.inner;
    const part = moment <= end ? (moment / end) * share : share + ((moment - end) / (this.run.drawn - end)) * (1 - share);
    return this.left + part * this.inner;
  }

  at(x) {
    const { end, share } = this;
    const part = (x - this.left) / this.inner;
    if (!this.run.rest) return part * this.run.drawn;
    return part <= share ? (part / share) * end : end + ((part - share) / (1 - share)) * (this.run.drawn - end);
  }

  /** The moments that a pixel shows, both included. */
  moments(x) {
    const clamp = (m) => Math.max(0, Math.min(this.run.drawn - 1, Math.floor(m)));
    const first = clamp(this.at(x));
    return [first, Math.max(first, clamp(Math.ceil(this.at(x + 1)) - 1))];
  }

  hint(event) {
    if (this.hover < this.left || this.hover > this.right) return tip.hide();
    const { run } = this;
    const [first, last] = this.moments(this.hover);
    const isEstimated = first > this.end;
    const value = (curve) => bytesText(curve.range(first, last)[1]);
    const list = run.tried.map((tried, i) => [element("span", {}, swatch(this.colour(i)), tried.label.slice(0, 60)), value(tried.curve)]);
    if (isEstimated) list.push([element("span", {}, swatch("var(--allocated)"), "in use"), value(run.rest.inUse)]);
    else list.push([element("span", {}, swatch("var(--reserved)"), "recorded"), value(run.levels.reserved)]);
    const when = isEstimated ? `estimated: ${group(first - this.end)} entries after the run died` : `after ${group(first)} entries`;
    tip.show(event, element("div", {}, element("b", {}, when)), rows(list));
  }

  paint() {
    const { context, width, height } = prepare(this.canvas);
    if (!width || !this.run.tried.length) return;
    this.width = width;
    const { run, end } = this;
    const { colours } = theme;
    const peak = (curve) => curve.range(0, run.drawn - 1)[1];
    const curves = [...run.tried.map((tried) => tried.curve), ...(run.rest ? [run.rest.inUse] : [])];
    const top = Math.max(1, run.meta.tried_bytes ?? 0, run.overview.reserved.range(0, run.entries)[1], ...curves.map(peak)) * 1.05;
    const bottom = height - px(24);
    const y = (bytes) => bottom - (bytes / top) * (bottom - px(6));
    this.paintSizes(context, top, y);
    const places = [];
    const step = Math.max(1, roundStep(end + 1, Math.max(2, (this.inner * this.share) / px(65))));
    for (let at = 0; at <= end; at += step) places.push([this.x(at), group(at)]);
    this.paintPlaces(context, places, bottom + px(8));
    const spans = Array.from({ length: Math.ceil(this.inner) }, (_, i) => this.moments(this.left + i));
    context.fillStyle = colours.reserved;
    spans.forEach(([first, last], i) => {
      if (first > end) return;
      const tall = y(run.levels.reserved.range(first, Math.min(last, end))[1]);
      context.fillRect(this.left + i, tall, 1, bottom - tall);
    });
    if (run.rest) this.paintRest(context, spans, y, bottom);
    // The run's own line is the first, and is on top.
    for (let number = run.tried.length - 1; number >= 0; number -= 1) this.line(context, run.tried[number], number, spans, y);
    const { tried_bytes: limit, limit_is_assumed: isAssumed } = run.meta;
    if (limit) dashed(context, [this.left, this.right], y(limit), `memory ${axisBytes(limit)}${isAssumed ? ", assumed" : ""}`, colours.bad);
    this.paintHover(context, px(4), bottom);
    this.explain();
  }

  /** Where the recording ends, and what is estimated to be in use from there on. */
  paintRest(context, spans, y, bottom) {
    const { colours } = theme;
    const x = this.x(this.end);
    this.trace(context, this.run.rest.inUse, spans.map((span, i) => [span, i]).filter(([[first]]) => first >= this.end), y, { colour: colours.allocated, wide: 1.5, dash: [2, 3] });
    context.fillStyle = colours.ink;
    context.fillRect(Math.round(x), px(4), px(1.5), bottom - px(4));
    context.textBaseline = "top";
    const words = "estimated";
    const isRight = x + context.measureText(words).width + px(8) < this.right;
    context.textAlign = isRight ? "left" : "right";
    context.fillText(words, x + px(isRight ? 6 : -5), px(4));
  }

  /** The table explains the lines, this the rest. */
  explain() {
    const { tried, meta, rest } = this.run;
    const { colours } = theme;
    const list = [["reserved in the recording", colours.reserved]];
    if (tried.some((one) => one.fails_at_entry !== null)) list.push(["a request fails here", colours.muted, "cross"]);
    if (meta.tried_bytes) list.push([meta.limit_is_assumed ? "memory, assumed" : "memory", colours.bad, "dash"]);
    if (rest) {
      list.push([`the recording ends: the run died at entry ${group(rest.died_at)}`, colours.ink, "post"], ["dashed: reserved, as estimated", colours.muted, "dash"],
        [`in use, as estimated: at most ${bytesText(rest.inUse.range(this.end, this.run.drawn - 1)[1])}`, colours.allocated, "dots"]);
    }
    showLegend(this.key, list);
  }

  /** A line through the most, and down to the least, of each of these spans with their pixels. */
  trace(context, curve, spans, y, { colour, wide, dash }) {
    context.strokeStyle = colour;
    context.lineWidth = px(wide);
    context.setLineDash(dash.map(px));
    context.lineJoin = "round";
    context.beginPath();
    spans.forEach(([[first, last], i], place) => {
      const [least, most] = curve.range(first, last);
      context[place ? "lineTo" : "moveTo"](this.left + i, y(most));
      if (least < most && !dash.length) context.lineTo(this.left + i + 0.5, y(least));
    });
    context.stroke();
    context.setLineDash([]);
  }

  line(context, tried, number, spans, y) {
    const isMarked = this.marked === number;
    context.globalAlpha = this.marked === null || isMarked ? 1 : 0.2;
    const how = { colour: this.colour(number), wide: isMarked ? 2.5 : 1.5 };
    const placed = spans.map((span, i) => [span, i]);
    this.trace(context, tried.curve, placed.filter(([[first]]) => first <= this.end), y, { ...how, dash: [] });
    if (this.run.rest) this.trace(context, tried.curve, placed.filter(([[first]]) => first >= this.end), y, { ...how, dash: [6, 4] });
    if (tried.fails_at_entry !== null) {
      const x = this.x(tried.fails_at_entry);
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
