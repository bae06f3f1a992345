// The timeline reacts: it can be zoomed, hovering shows exact bytes, and a click picks a moment.

class Timeline extends TimelinePicture {
  constructor(section, run, pick) {
    super();
    Object.assign(this, { run, pick, moment: 0, axis: "entries", drag: null, hover: null, width: 1 });
    this.canvas = section.querySelector(".timeline");
    this.strip = section.querySelector(".overview");
    this.reset = section.querySelector(".reset");
    this.key = section.querySelector(".timeline-legend");
    this.view = [0, this.span()];
    const most = run.levels.reserved.range(0, run.entries)[1];
    this.top = Math.max(most, run.meta.limit_bytes ?? 0, run.levels.active.range(0, run.entries)[1], 1) * 1.04;
    this.lanes = Math.min(2, run.meta.phases.reduce((depth, phase) => Math.max(depth, phase[3] + 1), 0));
    this.draw = onFrame(() => { this.paint(); this.paintStrip(); });
    this.isPending = this.differs();
    this.phaseRanks = this.rankPhases();
    this.listen(section);
    this.draw();
  }

  span() { return this.axis === "time" ? Math.max(1, this.run.times.duration) : Math.max(1, this.run.entries); }

  toMoment(x) { return this.axis === "time" ? this.run.times.moment(x) : x; }

  toAxis(moment) { return this.axis === "time" ? this.run.times.of(moment) : moment; }

  clamped(moment) { return Math.max(0, Math.min(this.run.entries, Math.floor(moment))); }

  /** Pixels of a place of the axis. */
  x(at) { return this.left + ((at - this.view[0]) / (this.view[1] - this.view[0])) * this.inner; }

  at(x) { return this.view[0] + ((x - this.left) / this.inner) * (this.view[1] - this.view[0]); }

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
      const centre = ((event.clientX - box.left - this.left) / this.inner) * this.span();
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

  /** The names of the phases that are drawn, the most frequent first, with their places. */
  rankPhases() {
    const counts = new Map();
    for (const [name, , , depth] of this.run.meta.phases) if (depth < this.lanes) counts.set(name, (counts.get(name) ?? 0) + 1);
    const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a - b);
    return new Map(names.map((name, rank) => [name, rank]));
  }

  /** Whether anything was ever waiting for other streams. */
  differs() {
    const { freed, gone } = this.run.blocks;
    return freed.some((moment, i) => gone[i] > moment + 1 || (gone[i] === NEVER && moment !== NEVER));
  }

  /** The moments that a pixel shows, both included. */
  momentsAt(x) {
    const [[first], [last]] = this.momentsBetween(x, 1);
    return [first, last];
  }

  /** The first and the last moments that each of these pixels shows. */
  momentsBetween(left, count) {
    const [first, last] = [new Uint32Array(count), new Uint32Array(count)];
    let start = this.toMoment(this.at(left));
    for (let i = 0; i < count; i += 1) {
      const end = this.toMoment(this.at(left + i + 1));
      first[i] = this.clamped(start);
      last[i] = Math.max(first[i], this.clamped(Math.ceil(end) - 1));
      start = end;
    }
    return [first, last];
  }

  hint(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    if (x < this.left || x > this.right) return tip.hide();
    const { run } = this;
    const [first, last] = this.momentsAt(x);
    const title = [element("b", {}, first === last ? `after ${group(first)} entries` : `after ${group(first)} to ${group(last)} entries`)];
    if (run.times) title.push(`  ${run.times.isExact ? "" : "≈ "}${durationText(run.times.of(first))}`);
    const line = (name, words) => {
      const [least, most] = run.levels[name].range(first, last);
      const exact = least === most ? `${group(most)} bytes` : `${group(least)} to ${group(most)} bytes`;
      const label = element("span", {}, swatch(theme.colours[name]), words);
      return [label, bytesText(most), exact];
    };
    const content = [element("div", {}, ...title), rows([line("allocated", "allocated"), ...(this.isPending ? [line("active", "active")] : []), line("reserved", "reserved")])];
    const near = (from, to) => this.x(this.toAxis(from)) <= x + 4 && this.x(this.toAxis(to)) >= x - 4;
    for (const [moment, kind, bytes] of run.meta.markers.filter((marker) => near(marker[0], marker[0])).slice(0, 4)) {
      const size = bytes === null ? "" : `, ${bytesText(bytes)} requested`;
      content.push(element("div", { style: `color:var(--${MARKS[kind][1]})` }, `${MARKS[kind][0]} at entry ${group(moment)}${size}`));
    }
    const inside = (phase) => phase[1] <= last && phase[2] > first;
    for (const phase of run.meta.phases.filter(inside).slice(0, 3)) content.push(element("div", { class: "quiet" }, run.meta.phase_names[phase[0]]));
    tip.show(event, ...content);
  }
}
