// One device of one file: its graphs, and the moment that they show. A page may have several of them; they share nothing but the theme.

class DeviceView {
  constructor(section) {
    this.section = section;
    this.charts = [];
    this.moment = -1;
    this.ready = null;
  }

  find(name) { return this.section.querySelector(name); }

  /** Unpacks the data and sets up the graphs, once. */
  setUp() {
    this.ready ??= this.build().catch((error) => {
      this.section.prepend(element("p", { class: "note" }, `The graphs cannot be drawn: ${error.message}. A browser from 2023 or later is needed.`));
      throw error;
    });
    return this.ready;
  }

  async build() {
    const data = this.find(".data");
    const run = await readRun(data.textContent.trim());
    data.remove();
    this.run = run;
    this.colours = new Colours(run);
    this.heap = new HeapMap(this.section, run, this.colours);
    this.holders = new Holders(this.section, run, this.colours, (shine) => this.heap.highlight(shine));
    this.kinds = new Kinds(this.section, run, this.colours, (shine) => this.heap.highlight(shine));
    this.charts = [this.heap];
    if (run.entries) {
      this.timeline = new Timeline(this.section, run, (moment) => this.pick(moment));
      this.charts.push(this.timeline, new TriedChart(this.section, run));
    }
    this.listen();
    const oom = run.meta.markers.find((marker) => marker[1] === "oom");
    this.pick(oom ? oom[0] : run.meta.peak_reserved);
    this.section.dataset.ready = "true";
  }

  draw() { for (const chart of this.charts) chart.draw(); }

  /** Shows a moment, or the nearest one that the page has. */
  pick(moment) {
    const { run } = this;
    const { moments } = run.meta;
    const at = moments ? moments.reduce((best, one) => (Math.abs(one - moment) < Math.abs(best - moment) ? one : best)) : moment;
    if (at === this.moment) return;
    this.moment = at;
    const heap = heapAt(run, at);
    this.heap.show(at, heap);
    this.holders.show(at, heap);
    this.kinds.show(at, heap);
    this.timeline?.select(at);
    this.find(".slider").value = moments ? moments.indexOf(at) : at;
    const time = run.times ? `, ${durationText(run.times.of(at))} after the first` : "";
    this.find(".when").textContent = run.entries ? `after ${group(at)} of ${group(run.entries)} entries${time}` : "at the end";
  }

  /** The moment so many steps away. */
  step(by) {
    const { moments } = this.run.meta;
    if (!moments) return Math.max(0, Math.min(this.run.entries, this.moment + by));
    return moments[Math.max(0, Math.min(moments.length - 1, moments.indexOf(this.moment) + Math.sign(by)))];
  }

  listen() {
    const { run, colours } = this;
    const colour = this.find(".colour");
    const { ways } = colours;
    colour.replaceChildren(...ways.map((value) => element("option", { value }, value)));
    colour.addEventListener("change", () => {
      colours.mode = colour.value;
      this.heap.draw();
      this.holders.show(this.moment, this.heap.heap);
      this.kinds.show(this.moment, this.heap.heap);
    });
    const slider = this.find(".slider");
    slider.max = run.meta.moments ? run.meta.moments.length - 1 : run.entries;
    slider.addEventListener("input", () => this.pick(run.meta.moments ? run.meta.moments[slider.value] : Number(slider.value)));
    this.find(".previous").addEventListener("click", () => this.pick(this.step(-1)));
    this.find(".next").addEventListener("click", () => this.pick(this.step(1)));
    for (const area of [this.find(".scroller"), this.find(".timeline")]) {
      area.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        event.preventDefault();
        this.pick(this.step(by * (event.shiftKey ? 100 : 1)));
      });
    }
    this.jumps();
  }

  /** Buttons that show the moments that matter. */
  jumps() {
    const { meta, entries } = this.run;
    const box = this.find(".jumps");
    const jump = (words, moment, title) => {
      const button = element("button", { type: "button", title }, words);
      button.addEventListener("click", () => this.pick(moment));
      box.append(button);
    };
    jump("start", 0, "before the first entry");
    jump("peak reserved", meta.peak_reserved, `after ${group(meta.peak_reserved)} entries`);
    jump("peak allocated", meta.peak_allocated, `after ${group(meta.peak_allocated)} entries`);
    const counts = {};
    for (const [moment, kind] of meta.markers) {
      counts[kind] = (counts[kind] ?? 0) + 1;
      if (counts[kind] <= (kind === "oom" ? 3 : 1)) jump(counts[kind] > 1 ? `${MARKS[kind][0]} ${counts[kind]}` : MARKS[kind][0], moment, `before entry ${group(moment)}`);
    }
    jump("end", entries, "after the last entry");
  }
}
