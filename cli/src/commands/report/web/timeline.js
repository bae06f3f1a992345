// The timeline: levels over entries or time, with markers and phases; it can be zoomed, and a click picks a moment.

const MARKS = { oom: ["out of memory", "bad"], retry: ["retry", "retry"], empty_cache: ["empty_cache", "empty"] };
const [LEFT, RIGHT, BOTTOM] = [76, 14, 50];

class Timeline {
  constructor(section, run, pick) {
    Object.assign(this, { run, pick, moment: 0, axis: "entries", drag: null, hover: null });
    this.canvas = section.querySelector(".timeline");
    this.strip = section.querySelector(".overview");
    this.reset = section.querySelector(".reset");
    this.view = [0, this.span()];
    const most = run.levels.reserved.range(0, run.entries)[1];
    this.top = Math.max(most, run.meta.limit_bytes ?? 0, run.levels.active.range(0, run.entries)[1], 1) * 1.04;
    this.lanes = Math.min(2, run.meta.phases.reduce((depth, phase) => Math.max(depth, phase[3] + 1), 0));
    this.draw = onFrame(() => { this.paint(); this.paintStrip(); });
    this.listen(section);
    this.legend(section.querySelector(".legend"));
    this.draw();
  }

  span() { return this.axis === "time" ? Math.max(1, this.run.times.duration) : Math.max(1, this.run.entries); }

  toMoment(x) { return this.axis === "time" ? this.run.times.moment(x) : x; }

  toAxis(moment) { return this.axis === "time" ? this.run.times.of(moment) : moment; }

  clamped(moment) { return Math.max(0, Math.min(this.run.entries, Math.floor(moment))); }

  /** Pixels of a place of the axis. */
  x(at) { return LEFT + ((at - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - LEFT - RIGHT); }

  at(px) { return this.view[0] + ((px - LEFT) / (this.width - LEFT - RIGHT)) * (this.view[1] - this.view[0]); }

  show(from, to) {
    const span = this.span();
    const least = this.axis === "time" ? Math.min(span, 5) : Math.min(span, 8);
    let width = Math.max(least, Math.min(span, to - from));
    from = Math.max(0, Math.min(span - width, from));
    if (width > span * 0.999) [from, width] = [0, span];
    this.view = [from, from + width];
    this.reset.disabled = width >= span;
    this.draw();
  }

  select(moment) {
    this.moment = moment;
    const at = this.toAxis(moment);
    const [from, to] = this.view;
    if (at < from || at > to) this.show(at - (to - from) / 2, at + (to - from) / 2);
    this.draw();
  }

  listen(section) {
    const { canvas, strip } = this;
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [from, to] = this.view;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = ((event.deltaX || event.deltaY) / this.width) * (to - from);
        return this.show(from + by, to + by);
      }
      const centre = Math.max(from, Math.min(to, this.at(place(event))));
      const factor = Math.exp(Math.max(-240, Math.min(240, event.deltaY)) * 0.0022);
      this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
      this.hint(event);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.drag = { from: place(event), to: place(event) };
    });
    canvas.addEventListener("pointermove", (event) => {
      this.hover = place(event);
      if (this.drag) this.drag.to = this.hover;
      this.hint(event);
      this.draw();
    });
    canvas.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (!drag) return;
      if (Math.abs(drag.to - drag.from) < 5) this.pick(this.clamped(this.toMoment(this.at(drag.to))));
      else this.show(this.at(Math.min(drag.from, drag.to)), this.at(Math.max(drag.from, drag.to)));
    });
    canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.hover = null; tip.hide(); this.draw(); });
    canvas.addEventListener("dblclick", () => this.show(0, this.span()));
    this.reset.addEventListener("click", () => this.show(0, this.span()));
    let held = false;
    const pan = (event) => {
      const box = strip.getBoundingClientRect();
      const centre = ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * this.span();
      const half = (this.view[1] - this.view[0]) / 2;
      this.show(centre - half, centre + half);
    };
    strip.addEventListener("pointerdown", (event) => { held = true; strip.setPointerCapture(event.pointerId); pan(event); });
    strip.addEventListener("pointermove", (event) => { if (held) pan(event); });
    strip.addEventListener("pointerup", () => { held = false; });
    for (const button of section.querySelectorAll("[data-axis]")) {
      if (button.dataset.axis === "time" && !this.run.times) {
        button.disabled = true;
        button.title = "the file has no times";
      }
      button.addEventListener("click", () => {
        const [from, to] = this.view.map((at) => this.toMoment(at));
        const isWhole = this.reset.disabled;
        this.axis = button.dataset.axis;
        for (const other of section.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", other === button);
        if (isWhole) this.show(0, this.span()); else this.show(this.toAxis(from), this.toAxis(to));
      });
    }
  }

  legend(box) {
    const { run } = this;
    const colours = theme.colours;
    const items = [["allocated", "allocated"], ["reserved", "reserved"]];
    if (run.levels.active.range(0, run.entries)[1] > 0 && this.differs()) items.splice(1, 0, ["active", "freed, still used by other streams"]);
    box.replaceChildren(...items.map(([name, words]) => element("span", {}, swatch(`var(--${name})`), words)));
    for (const [kind, [words, colour]] of Object.entries(MARKS)) {
      const count = run.meta.markers.filter((marker) => marker[1] === kind).length;
      if (count) box.append(element("span", {}, element("i", { class: "mark", style: `color:var(--${colour})` }), `${words} (${group(count)})`));
    }
    if (run.meta.phases.length) box.append(element("span", {}, swatch(colours.phase), "phases"));
  }

  /** Whether anything was ever waiting for other streams. */
  differs() {
    const { freed, gone } = this.run.blocks;
    return freed.some((moment, i) => gone[i] > moment + 1 || (gone[i] === NEVER && moment !== NEVER));
  }

  /** The moments that a pixel shows, both included. */
  momentsAt(px) {
    const first = this.clamped(this.toMoment(this.at(px)));
    return [first, Math.max(first, this.clamped(Math.ceil(this.toMoment(this.at(px + 1))) - 1))];
  }

  hint(event) {
    const px = event.clientX - this.canvas.getBoundingClientRect().left;
    if (px < LEFT || px > this.width - RIGHT) return tip.hide();
    const { run } = this;
    const [first, last] = this.momentsAt(px);
    const title = [element("b", {}, first === last ? `after ${group(first)} entries` : `after ${group(first)} to ${group(last)} entries`)];
    if (run.times) title.push(`  ${run.times.isExact ? "" : "≈ "}${durationText(run.times.of(first))}`);
    const line = (name, words) => {
      const [least, most] = run.levels[name].range(first, last);
      const exact = least === most ? `${group(most)} bytes` : `${group(least)} to ${group(most)} bytes`;
      const label = element("span", {}, swatch(theme.colours[name === "reserved" ? "reserved-line" : name]), words);
      return [label, bytesText(most), exact];
    };
    const content = [element("div", {}, ...title), rows([line("allocated", "allocated"), line("active", "active"), line("reserved", "reserved")])];
    const near = (from, to) => this.x(this.toAxis(from)) <= px + 4 && this.x(this.toAxis(to)) >= px - 4;
    for (const [moment, kind, bytes] of run.meta.markers.filter((marker) => near(marker[0], marker[0])).slice(0, 4)) {
      const size = bytes === null ? "" : `, ${bytesText(bytes)} requested`;
      content.push(element("div", { style: `color:var(--${MARKS[kind][1]})` }, `${MARKS[kind][0]} at entry ${group(moment)}${size}`));
    }
    const inside = (phase) => phase[1] <= last && phase[2] > first;
    for (const phase of run.meta.phases.filter(inside).slice(0, 3)) content.push(element("div", { class: "quiet" }, run.meta.phase_names[phase[0]]));
    tip.show(event, ...content);
  }

  paint() {
    const { context, width, height } = prepare(this.canvas);
    if (!width) return;
    this.width = width;
    const box = { top: 8 + this.lanes * 15, bottom: height - BOTTOM, left: LEFT, right: width - RIGHT };
    const y = (bytes) => box.bottom - (bytes / this.top) * (box.bottom - box.top);
    this.paintGrid(context, box, y);
    this.paintPhases(context, box);
    this.paintLevels(context, box, y);
    this.paintLimit(context, box, y);
    this.paintMarkers(context, box);
    this.paintCursor(context, box, height);
  }

  paintGrid(context, box, y) {
    const colours = theme.colours;
    let step = 2 ** Math.ceil(Math.log2(this.top / 7));
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      context.fillStyle = colours.line;
      context.fillRect(box.left, Math.round(y(bytes)), box.right - box.left, 1);
      context.fillStyle = colours.muted;
      context.fillText(axisBytes(bytes), box.left - 8, y(bytes));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const [from, to] = this.view;
    const isTime = this.axis === "time";
    step = roundStep(to - from, Math.max(3, (box.right - box.left) / 130));
    if (!isTime) step = Math.max(1, step);
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = Math.round(this.x(at));
      context.fillStyle = colours.line;
      context.fillRect(x, box.bottom, 1, 5);
      context.fillStyle = colours.muted;
      if (x > box.left + 20 || at === 0) context.fillText(isTime ? this.timeLabel(at, step) : group(at), Math.min(x, box.right - 24), box.bottom + 30);
    }
  }

  timeLabel(us, step) {
    const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 && us < 1e6 ? [1e3, "ms"] : step < 1e3 && us < 1e4 ? [1, "µs"] : [1e6, "s"];
    return `${+(us / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit))))} ${name}`;
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
      const hue = (262 + name * 67) % 360;
      const top = 4 + depth * 15;
      context.fillStyle = `hsl(${hue} 45% ${theme.colours.light} / .10)`;
      context.fillRect(start, top + 13, width, box.bottom - top - 13);
      context.fillStyle = `hsl(${hue} 45% ${theme.colours.light} / .85)`;
      context.fillRect(start, top, width, 12);
      if (width > 60) {
        context.save();
        context.beginPath();
        context.rect(start, top, width - 4, 12);
        context.clip();
        context.fillStyle = "#fff";
        context.font = "10.5px system-ui,sans-serif";
        context.fillText(names[name], start + 5, top + 6.5);
        context.restore();
      }
    }
  }

  paintLevels(context, box, y) {
    const count = Math.ceil(box.right - box.left);
    const spans = [];
    for (let i = 0; i < count; i += 1) spans.push(this.momentsAt(box.left + i));
    const { reserved, active, allocated } = this.run.levels;
    const ranges = (level) => spans.map(([first, last]) => level.range(first, last));
    const area = (list, end, colour) => {
      context.beginPath();
      context.moveTo(box.left, box.bottom);
      list.forEach((range, i) => {
        context.lineTo(box.left + i, y(range[end]));
        context.lineTo(box.left + i + 1, y(range[end]));
      });
      context.lineTo(box.left + count, box.bottom);
      context.fillStyle = colour;
      context.fill();
    };
    const [held, busy, used] = [ranges(reserved), ranges(active), ranges(allocated)];
    const { colours } = theme;
    area(held, 1, colours.reserved);
    area(busy, 1, colours.active);
    area(used, 1, colours["allocated-soft"]);
    area(used, 0, colours.allocated);
    context.beginPath();
    held.forEach((range, i) => {
      context[i ? "lineTo" : "moveTo"](box.left + i, y(range[1]));
      context.lineTo(box.left + i + 1, y(range[1]));
    });
    context.strokeStyle = colours["reserved-line"];
    context.lineWidth = 1.25;
    context.stroke();
  }

  paintLimit(context, box, y) {
    const limit = this.run.meta.limit_bytes;
    if (!limit) return;
    context.strokeStyle = context.fillStyle = theme.colours.bad;
    context.setLineDash([6, 4]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(box.left, y(limit));
    context.lineTo(box.right, y(limit));
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.textBaseline = "bottom";
    context.fillText(`limit ${axisBytes(limit)}`, box.right - 4, y(limit) - 2);
  }

  paintMarkers(context, box) {
    const taken = new Map();
    for (const kind of ["oom", "retry", "empty_cache"]) {
      context.fillStyle = theme.colours[MARKS[kind][1]];
      for (const [moment, of] of this.run.meta.markers) {
        if (of !== kind) continue;
        const x = Math.round(this.x(this.toAxis(moment)));
        if (x < box.left || x > box.right || taken.get(x) === kind) continue;
        // Of two kinds at one place the less serious one goes below.
        const isBelow = [-4, -2, 0, 2, 4].some((by) => (taken.get(x + by) ?? kind) !== kind);
        taken.set(x, taken.get(x) ?? kind);
        if (kind === "oom") context.fillRect(x, box.top, 1, box.bottom - box.top);
        const top = box.bottom + (isBelow ? 15 : 4);
        context.beginPath();
        context.moveTo(x + 0.5, top);
        context.lineTo(x - 4.5, top + 9);
        context.lineTo(x + 5.5, top + 9);
        context.fill();
      }
    }
  }

  paintCursor(context, box, height) {
    const x = this.x(this.toAxis(this.moment));
    if (x >= box.left - 1 && x <= box.right + 1) {
      context.fillStyle = theme.colours.ink;
      context.fillRect(Math.round(x), box.top - 4, 1.5, box.bottom - box.top + 4);
      context.beginPath();
      context.moveTo(x - 5.25, box.top - 8);
      context.lineTo(x + 6.75, box.top - 8);
      context.lineTo(x + 0.75, box.top);
      context.fill();
    }
    if (this.drag && Math.abs(this.drag.to - this.drag.from) >= 5) {
      context.globalAlpha = 0.18;
      context.fillStyle = theme.colours.accent;
      const [from, to] = [this.drag.from, this.drag.to].map((px) => Math.max(box.left, Math.min(box.right, px)));
      context.fillRect(Math.min(from, to), box.top, Math.abs(to - from), box.bottom - box.top);
      context.globalAlpha = 1;
    } else if (this.hover !== null && this.hover >= box.left && this.hover <= box.right) {
      context.globalAlpha = 0.35;
      context.fillStyle = theme.colours.ink;
      context.fillRect(Math.round(this.hover), box.top, 1, box.bottom - box.top);
      context.globalAlpha = 1;
    }
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
    for (const [level, colour] of [["reserved", theme.colours.reserved], ["active", theme.colours["allocated-soft"]]]) {
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
    const inner = width - LEFT - RIGHT;
    const { colours } = theme;
    context.drawImage(this.stripPicture(inner, height), LEFT, 0, inner, height);
    const [from, to] = this.view.map((at) => LEFT + (at / this.span()) * inner);
    context.fillStyle = colours.card;
    context.globalAlpha = 0.65;
    context.fillRect(LEFT, 0, from - LEFT, height);
    context.fillRect(to, 0, width - RIGHT - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.75, 0.75, Math.max(2, to - from - 1.5), height - 1.5);
  }
}
