// How the timeline looks: levels over entries or time, with markers and phases, and the whole run in small below it.

const MARKS = { oom: ["out of memory", "bad"], retry: ["retry", "retry"], empty_cache: ["empty_cache", "empty"] };
/** Space around graphs, in units of `px`. */
const [LEFT, RIGHT, BOTTOM, LANE] = [64, 12, 50, 18];

/** The area of a graph in its canvas. */
class Plot {
  get left() { return px(LEFT); }

  get right() { return this.width - px(RIGHT); }

  get inner() { return Math.max(1, this.right - this.left); }

  /** Lines for round sizes up to `top`, with words. */
  paintSizes(context, top, y) {
    const step = 2 ** Math.ceil(Math.log2(top / 6));
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let bytes = 0; bytes <= top; bytes += step) {
      context.fillStyle = theme.colours.line;
      context.fillRect(this.left, Math.round(y(bytes)), this.inner, 1);
      context.fillStyle = theme.colours.muted;
      context.fillText(axisBytes(bytes), this.left - px(8), y(bytes));
    }
  }

  /** Words below the graph at places of the axis; none overlaps another or leaves the canvas. */
  paintPlaces(context, places, y) {
    context.textAlign = "center";
    context.textBaseline = "top";
    let last = -Infinity;
    for (const [x, words] of places) {
      const half = context.measureText(words).width / 2;
      const centre = Math.min(x, this.width - half - 2);
      if (centre - half < last + px(10)) continue;
      context.fillStyle = theme.colours.muted;
      context.fillText(words, centre, y);
      last = centre + half;
    }
  }

  paintHover(context, top, bottom) {
    if (this.hover === null || this.hover < this.left || this.hover > this.right) return;
    context.globalAlpha = 0.35;
    context.fillStyle = theme.colours.ink;
    context.fillRect(Math.round(this.hover), top, 1, bottom - top);
    context.globalAlpha = 1;
  }
}

class TimelinePicture extends Plot {
  paint() {
    const { context, width, height } = prepare(this.canvas);
    if (!width) return;
    this.width = width;
    const box = { top: px(12 + this.lanes * LANE), bottom: height - px(BOTTOM), left: this.left, right: this.right };
    const y = (bytes) => box.bottom - (bytes / this.top) * (box.bottom - box.top);
    this.paintSizes(context, this.top, y);
    this.paintAxis(context, box);
    this.paintPhases(context, box);
    const hasRanges = this.paintLevels(context, box, y);
    this.paintLimit(context, box, y);
    this.paintMarkers(context, box);
    this.paintCursor(context, box);
    this.explain(hasRanges);
  }

  paintAxis(context, box) {
    const [from, to] = this.view;
    const isTime = this.axis === "time";
    let step = roundStep(to - from, Math.max(2, this.inner / px(65)));
    if (!isTime) step = Math.max(1, step);
    const places = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = Math.round(this.x(at));
      context.fillStyle = theme.colours.line;
      context.fillRect(x, box.bottom, 1, px(5));
      places.push([x, isTime ? this.timeLabel(at, step) : group(at)]);
    }
    this.paintPlaces(context, places, box.bottom + px(31));
  }

  timeLabel(us, step) {
    const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 && us < 1e6 ? [1e3, "ms"] : step < 1e3 && us < 1e4 ? [1, "µs"] : [1e6, "s"];
    return `${+(us / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit))))} ${name}`;
  }

  /** The colour of the phases with this name. */
  phaseColour(name) {
    const { palette } = this.run.meta;
    return palette.phases[this.phaseRanks.get(name)] ?? palette.other_phases;
  }

  paintPhases(context, box) {
    const { phases, phase_names: names } = this.run.meta;
    context.textAlign = "left";
    context.textBaseline = "middle";
    let [last, lastDepth] = [-1, -1];
    for (const [name, from, to, depth] of phases) {
      if (depth >= this.lanes) continue;
      const [start, end] = [Math.max(box.left, this.x(this.toAxis(from))), Math.min(box.right, this.x(this.toAxis(to)))];
      if (end < box.left || start > box.right || (end <= last && depth === lastDepth)) continue;
      [last, lastDepth] = [Math.max(end, start + 1), depth];
      const width = Math.max(1, end - start);
      const [top, tall] = [px(4 + depth * LANE), px(LANE - 3)];
      context.fillStyle = this.phaseColour(name);
      context.globalAlpha = 0.1;
      context.fillRect(start, top + tall, width, box.bottom - top - tall);
      context.globalAlpha = 1;
      context.fillRect(start, top, width, px(3));
      context.globalAlpha = 0.25;
      context.fillRect(start, top, width, tall);
      context.globalAlpha = 1;
      if (width > px(60)) {
        context.save();
        context.beginPath();
        context.rect(start, top, width - px(4), tall);
        context.clip();
        context.fillStyle = theme.colours.ink;
        context.font = font(11);
        context.fillText(names[name], start + px(5), top + tall / 2 + px(1.5));
        context.restore();
      }
    }
  }

  /** Returns whether a pixel shows several amounts of allocated memory. */
  paintLevels(context, box, y) {
    const [first, last] = this.momentsBetween(box.left, Math.ceil(box.right - box.left));
    const { reserved, active, allocated } = this.run.levels;
    const area = (values, colour) => {
      context.beginPath();
      context.moveTo(box.left, box.bottom);
      this.traceSteps(context, values, box.left, y);
      context.lineTo(box.left + values.length, box.bottom);
      context.fillStyle = colour;
      context.fill();
    };
    const [held, used] = [reserved.ranges(first, last), allocated.ranges(first, last)];
    const { colours } = theme;
    const hasRanges = used.least.some((least, i) => least < used.most[i]);
    area(held.most, colours.reserved);
    if (this.isPending) area(active.ranges(first, last).most, colours.active);
    if (hasRanges) area(used.most, colours["allocated-soft"]);
    area(used.least, colours.allocated);
    context.beginPath();
    context.moveTo(box.left, y(held.most[0]));
    this.traceSteps(context, held.most, box.left, y);
    context.strokeStyle = colours["reserved-line"];
    context.lineWidth = px(1.25);
    context.stroke();
    return hasRanges;
  }

  /** Continues a path along these values, each of which is a pixel wide. */
  traceSteps(context, values, left, y) {
    for (let i = 0; i < values.length; ) {
      const value = values[i];
      context.lineTo(left + i, y(value));
      while (i < values.length && values[i] === value) i += 1;
      context.lineTo(left + i, y(value));
    }
  }

  paintLimit(context, box, y) {
    const limit = this.run.meta.limit_bytes;
    if (limit) dashed(context, [box.left, box.right], y(limit), `limit ${axisBytes(limit)}${this.run.meta.limit_is_assumed ? ", assumed" : ""}`, theme.colours.bad);
  }

  paintMarkers(context, box) {
    const taken = new Map();
    const half = px(5);
    for (const kind of Object.keys(MARKS)) {
      context.fillStyle = theme.colours[MARKS[kind][1]];
      for (const [moment, of] of this.run.meta.markers) {
        if (of !== kind) continue;
        const x = Math.round(this.x(this.toAxis(moment)));
        if (x < box.left || x > box.right || taken.get(x) === kind) continue;
        // If two kinds share a place, the less serious one goes below.
        const isBelow = [-4, -2, 0, 2, 4].some((by) => (taken.get(x + by) ?? kind) !== kind);
        taken.set(x, taken.get(x) ?? kind);
        if (kind === "oom") context.fillRect(x, box.top, px(1), box.bottom - box.top);
        const top = box.bottom + px(isBelow ? 16 : 5);
        context.beginPath();
        context.moveTo(x + 0.5, top);
        context.lineTo(x + 0.5 - half, top + px(9));
        context.lineTo(x + 0.5 + half, top + px(9));
        context.fill();
      }
    }
  }

  paintCursor(context, box) {
    const x = this.x(this.toAxis(this.moment));
    if (x >= box.left - 1 && x <= box.right + 1) {
      const half = px(6);
      context.fillStyle = theme.colours.ink;
      context.fillRect(Math.round(x), box.top - px(4), px(1.5), box.bottom - box.top + px(4));
      context.beginPath();
      context.moveTo(x + 0.75 - half, box.top - px(8));
      context.lineTo(x + 0.75 + half, box.top - px(8));
      context.lineTo(x + 0.75, box.top);
      context.fill();
    }
    if (this.drag && Math.abs(this.drag.to - this.drag.from) >= 5) {
      context.globalAlpha = 0.18;
      context.fillStyle = theme.colours.accent;
      const [from, to] = [this.drag.from, this.drag.to].map((at) => Math.max(box.left, Math.min(box.right, at)));
      context.fillRect(Math.min(from, to), box.top, Math.abs(to - from), box.bottom - box.top);
      context.globalAlpha = 1;
    } else this.paintHover(context, box.top, box.bottom);
  }

  /** A row of the legend for everything that is drawn. */
  explain(hasRanges) {
    const { meta } = this.run;
    const { colours } = theme;
    const list = [["allocated", colours.allocated]];
    if (hasRanges) list.push(["allocated at times, within one pixel", colours["allocated-soft"]]);
    if (this.isPending) list.push(["freed, still used by other streams", colours.active]);
    list.push(["reserved, not in use", colours.reserved], ["all reserved", colours["reserved-line"], "line"]);
    if (meta.limit_bytes) list.push([meta.limit_is_assumed ? "limit, assumed" : "limit", colours.bad, "dash"]);
    for (const [kind, [words, colour]] of Object.entries(MARKS)) {
      const count = meta.markers.filter((marker) => marker[1] === kind).length;
      if (count) list.push([`${words} (${group(count)})`, colours[colour], "mark"]);
    }
    for (const [name, rank] of this.phaseRanks) if (meta.palette.phases[rank]) list.push([`phase ${meta.phase_names[name].slice(0, 60)}`, meta.palette.phases[rank], "bar"]);
    if (this.phaseRanks.size > meta.palette.phases.length) list.push(["other phases", meta.palette.other_phases, "bar"]);
    list.push(["the moment shown below", colours.ink, "cursor"]);
    if (!this.reset.disabled) list.push(["the stretch shown, in the whole run", colours.accent, "frame"]);
    showLegend(this.key, list);
  }

  /** The whole run in small, drawn once for each size, axis and theme. */
  stripPicture(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const name = [width, height, ratio, this.axis, theme.colours.card].join();
    if (this.strips?.name === name) return this.strips.picture;
    const picture = element("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const context = picture.getContext("2d");
    context.scale(ratio, ratio);
    const span = this.span();
    for (const [level, colour] of [["reserved", theme.colours.reserved], ["allocated", theme.colours.allocated]]) {
      context.fillStyle = colour;
      for (let i = 0; i < width; i += 1) {
        const first = this.clamped(this.toMoment((i / width) * span));
        const last = Math.max(first, this.clamped(Math.ceil(this.toMoment(((i + 1) / width) * span)) - 1));
        const tall = (this.run.overview[level].range(first, last)[1] / this.top) * height;
        context.fillRect(i, height - tall, 1, tall);
      }
    }
    this.strips = { name, picture };
    return picture;
  }

  paintStrip() {
    const { context, width, height } = prepare(this.strip);
    if (!width) return;
    const { left, right, inner } = this;
    const { colours } = theme;
    context.drawImage(this.stripPicture(inner, height), left, 0, inner, height);
    const [from, to] = this.view.map((at) => left + (at / this.span()) * inner);
    context.fillStyle = colours.card;
    context.globalAlpha = 0.65;
    context.fillRect(left, 0, from - left, height);
    context.fillRect(to, 0, right - to, height);
    context.globalAlpha = 1;
    if (this.reset.disabled) return;
    context.strokeStyle = colours.accent;
    context.lineWidth = px(1.5);
    context.strokeRect(from + 0.75, 0.75, Math.max(2, to - from - 1.5), height - 1.5);
  }
}
