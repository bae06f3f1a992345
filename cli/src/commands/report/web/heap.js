// The heap at a moment: segments to scale, grouped by pool and stream, large ones first. A segment longer than a row continues in the
// next. Blocks are coloured; holes keep the segment's colour.

const [ROW, STEP, GAP, HEADING, ROWS] = [16, 20, 2, 20, 24];
/** The most pixels of the map's height. */
const MOST_HEIGHT = 15000;

/** What there is at a moment: segments with their blocks by address, and the sums. */
function heapAt(run, moment) {
  const { blocks, segments: pieces } = run;
  const present = [];
  for (let i = 0; i < pieces.count && pieces.born[i] <= moment; i += 1) if (moment < pieces.gone[i]) present.push(i);
  present.sort((a, b) => pieces.address[a] - pieces.address[b]);
  const segments = [];
  for (const i of present) {
    const last = segments.at(-1);
    const [stream, pool] = [pieces.stream[i], pieces.pool[i]];
    const continues = last && last.expandable && pieces.expandable[i] && last.end === pieces.address[i] && last.stream === stream && last.pool === pool;
    if (continues) last.end += pieces.size[i];
    else segments.push({ address: pieces.address[i], end: pieces.address[i] + pieces.size[i], stream, pool, expandable: pieces.expandable[i] === 1, blocks: [] });
  }
  const live = [];
  for (let i = 0; i < blocks.count && blocks.born[i] <= moment; i += 1) if (moment < blocks.gone[i]) live.push(i);
  live.sort((a, b) => blocks.address[a] - blocks.address[b]);
  const heap = { segments, live: live.length, pending: 0, allocated: 0, active: 0, reserved: 0, holes: [] };
  let at = 0;
  for (const segment of segments) {
    heap.reserved += segment.end - segment.address;
    while (at < live.length && blocks.address[live[at]] < segment.address) at += 1;
    let from = segment.address;
    for (; at < live.length && blocks.address[live[at]] < segment.end; at += 1) {
      const i = live[at];
      if (blocks.address[i] > from) heap.holes.push({ address: from, size: blocks.address[i] - from, segment });
      from = Math.max(from, blocks.address[i] + blocks.size[i]);
      segment.blocks.push(i);
      heap.active += blocks.size[i];
      if (blocks.freed[i] <= moment) heap.pending += 1; else heap.allocated += blocks.size[i];
    }
    if (segment.end > from) heap.holes.push({ address: from, size: segment.end - from, segment });
  }
  return heap;
}

class HeapMap {
  constructor(section, run, pick) {
    Object.assign(this, { run, pick, moment: -1, heap: null, pieces: [], pinned: null });
    const find = (name) => section.querySelector(name);
    this.canvas = find(".heap");
    this.details = find(".details");
    this.when = find(".when");
    this.slider = find(".slider");
    this.key = find(".key");
    this.scale = 1;
    this.hasStacks = run.meta.stacks.length > 0;
    this.colour = this.hasStacks ? "stack" : "size";
    this.peak = Math.max(1, run.overview.reserved.range(0, run.entries)[1]);
    this.draw = onFrame(() => this.paint());
    this.listen(section, find);
    this.jumps(find(".jumps"));
  }

  listen(section, find) {
    const colour = find(".colour");
    const ways = [["size", "size"], ["age", "age"]];
    if (this.hasStacks) ways.unshift(["stack", "stack"]);
    colour.replaceChildren(...ways.map(([value, words]) => element("option", { value }, words)));
    colour.addEventListener("change", () => { this.colour = colour.value; this.draw(); });
    find(".scale").addEventListener("change", (event) => { this.scale = Number(event.target.value); this.draw(); });
    const { slider, run } = this;
    slider.max = run.meta.moments ? run.meta.moments.length - 1 : run.entries;
    slider.addEventListener("input", () => this.pick(run.meta.moments ? run.meta.moments[slider.value] : Number(slider.value)));
    find(".previous").addEventListener("click", () => this.pick(this.step(-1)));
    find(".next").addEventListener("click", () => this.pick(this.step(1)));
    for (const area of [this.canvas.parentElement, section.querySelector(".timeline")]) {
      area.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        event.preventDefault();
        this.pick(this.step(by * (event.shiftKey ? 100 : 1)));
      });
    }
    this.canvas.addEventListener("pointermove", (event) => this.hint(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.canvas.addEventListener("click", (event) => {
      const found = this.find(event);
      this.pinned = found && found.block !== undefined ? found.block : null;
      this.describe();
      this.draw();
    });
  }

  jumps(box) {
    const { meta } = this.run;
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
    jump("end", this.run.entries, "after the last entry");
  }

  /** The moment so many steps away. */
  step(by) {
    const { moments } = this.run.meta;
    if (!moments) return Math.max(0, Math.min(this.run.entries, this.moment + by));
    return moments[Math.max(0, Math.min(moments.length - 1, moments.indexOf(this.moment) + Math.sign(by)))];
  }

  show(moment) {
    if (moment === this.moment) return;
    this.moment = moment;
    this.heap = heapAt(this.run, moment);
    const { moments } = this.run.meta;
    this.slider.value = moments ? moments.indexOf(moment) : moment;
    if (this.pinned !== null && !(this.run.blocks.born[this.pinned] <= moment && moment < this.run.blocks.gone[this.pinned])) this.pinned = null;
    const time = this.run.times ? `, ${durationText(this.run.times.of(moment))} after the first` : "";
    this.when.textContent = this.run.entries ? `after ${group(moment)} of ${group(this.run.entries)} entries${time}` : "at the end";
    this.describe();
    this.draw();
  }

  paint() {
    const { heap, run } = this;
    const width = this.canvas.clientWidth;
    if (!heap || !width) return;
    const perPixel = this.peak / (width * ROWS * 0.93 * this.scale);
    const { pieces, headings, height } = this.layout(width, perPixel);
    this.canvas.style.height = `${height}px`;
    const { context } = prepare(this.canvas, height);
    const { colours } = theme;
    context.textBaseline = "alphabetic";
    for (const { y, words } of headings) {
      context.fillStyle = colours.muted;
      context.fillText(words, 0, y);
    }
    const { blocks } = run;
    for (const { x, y, length, from, segment } of pieces) {
      context.fillStyle = colours["free-line"];
      context.fillRect(x, y, length, ROW);
      context.fillStyle = colours.free;
      context.fillRect(x + 0.5, y + 0.5, Math.max(0.5, length - 1), ROW - 1);
      const to = from + length * perPixel;
      for (let k = firstBlock(blocks, segment.blocks, from); k < segment.blocks.length; k += 1) {
        const i = segment.blocks[k];
        if (blocks.address[i] >= to) break;
        const left = x + (Math.max(from, blocks.address[i]) - from) / perPixel;
        const right = x + (Math.min(to, blocks.address[i] + blocks.size[i]) - from) / perPixel;
        if (right <= left) continue;
        context.fillStyle = this.colourOf(i);
        const gap = right - left > 3 ? 0.6 : 0;
        context.fillRect(left, y, Math.max(0.4, right - left - gap), ROW);
        if (i === this.pinned) {
          context.strokeStyle = colours.ink;
          context.lineWidth = 2;
          context.strokeRect(left, y, Math.max(2, right - left), ROW);
        }
      }
    }
    Object.assign(this, { pieces, perPixel });
    this.explain();
  }

  /** Where the pieces of segments are, row by row. */
  layout(width, perPixel) {
    const groups = new Map();
    for (const segment of this.heap.segments) {
      const name = `${segment.pool} ${segment.stream}`;
      if (!groups.has(name)) groups.set(name, { segments: [], bytes: 0 });
      const group = groups.get(name);
      group.segments.push(segment);
      group.bytes += segment.end - segment.address;
    }
    const [pieces, headings] = [[], []];
    let y = 0;
    for (const { segments, bytes } of [...groups.values()].sort((a, b) => b.bytes - a.bytes)) {
      segments.sort((a, b) => (b.end - b.address) - (a.end - a.address) || a.address - b.address);
      headings.push({ y: y + 14, words: `${this.place(segments[0])}: ${counted(segments.length, "segment")}, ${bytesText(bytes)}` });
      y += HEADING;
      let x = 0;
      for (const segment of segments) {
        const total = Math.max(2, (segment.end - segment.address) / perPixel);
        if (x > 0 && x + total > width && total <= width) [x, y] = [0, y + STEP];
        for (let done = 0; total - done > 0.01;) {
          if (x >= width - 1) [x, y] = [0, y + STEP];
          const length = Math.min(total - done, width - x);
          pieces.push({ x, y, length, from: segment.address + done * perPixel, segment });
          done += length;
          x += length;
        }
        x += GAP;
      }
      y += STEP + 8;
    }
    if (y <= MOST_HEIGHT) return { pieces, headings, height: Math.max(40, y) };
    // A canvas has a maximum height: segments that do not fit whole are only counted.
    const bottom = MOST_HEIGHT - HEADING;
    const hidden = new Set(pieces.filter((piece) => piece.y + ROW > bottom).map((piece) => piece.segment));
    const shown = pieces.filter((piece) => !hidden.has(piece.segment));
    const end = shown.reduce((most, piece) => Math.max(most, piece.y + STEP), 0);
    const kept = headings.filter((heading) => heading.y < end);
    kept.push({ y: end + 14, words: `and ${counted(hidden.size, "more segment")}` });
    return { pieces: shown, headings: kept, height: end + HEADING };
  }

  place(segment) {
    const { streams, pools } = this.run.meta.log;
    const pool = pools[segment.pool];
    const name = pool.every((part) => part === "0") ? "default pool" : `private pool (${pool.join(", ")})`;
    return `${name}, stream ${streams[segment.stream] === "0" ? "0 (default)" : streams[segment.stream]}`;
  }

  colourOf(i) {
    const { blocks } = this.run;
    if (blocks.freed[i] <= this.moment) return theme.colours.pending;
    const light = theme.colours.light;
    if (this.colour === "stack") {
      const stack = blocks.stack[i];
      return stack === 0 ? theme.colours["reserved-line"] : `hsl(${(stack * 137.508 + 190) % 360} ${42 + (stack % 3) * 9}% ${light})`;
    }
    if (this.colour === "age") {
      const share = (this.moment - blocks.born[i]) / Math.max(1, this.moment);
      return ramp(Math.sqrt(share));
    }
    return ramp((Math.log2(Math.max(512, blocks.size[i])) - 9) / 21);
  }

  explain() {
    const items = [element("span", {}, swatch("var(--free);outline:1px solid var(--free-line);outline-offset:-1px"), "free")];
    if (this.heap.pending) items.push(element("span", {}, swatch("var(--pending)"), "freed, still used by another stream"));
    const scale = (from, to) => {
      const stops = HUES.map(([at]) => `${ramp(at)} ${at * 100}%`).join(",");
      return element("span", {}, `${from} `, element("i", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), to);
    };
    if (this.colour === "size") items.push(scale("512 B", "1 GiB and more"));
    if (this.colour === "age") items.push(scale("just requested", "from the beginning"));
    if (this.colour === "stack") items.push(element("span", {}, "one colour for each stack; grey: no stack in the file"));
    this.key.replaceChildren(...items);
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const piece = this.pieces.find((p) => y >= p.y && y < p.y + ROW && x >= p.x && x < p.x + Math.max(2, p.length));
    if (!piece) return null;
    const { blocks } = this.run;
    const address = piece.from + (x - piece.x) * this.perPixel;
    const { segment } = piece;
    const k = firstBlock(blocks, segment.blocks, address);
    const i = segment.blocks[k];
    if (i !== undefined && blocks.address[i] <= address) return { segment, block: i };
    const before = segment.blocks[k - 1];
    const from = before === undefined ? segment.address : blocks.address[before] + blocks.size[before];
    return { segment, hole: { address: from, size: (i === undefined ? segment.end : blocks.address[i]) - from } };
  }

  hint(event) {
    const found = this.find(event);
    this.canvas.style.cursor = found?.block !== undefined ? "pointer" : "default";
    if (!found) return tip.hide();
    const { segment } = found;
    const of = ["segment", bytesText(segment.end - segment.address) + (segment.expandable ? ", expandable" : "")];
    if (found.hole) {
      return tip.show(event, element("div", {}, element("b", {}, `free: ${bytesText(found.hole.size)}`)),
        rows([["bytes", group(found.hole.size)], ["address", this.address(found.hole.address)], of, ["in", this.place(segment)]]));
    }
    const stack = this.stackOf(found.block).slice(0, 5);
    tip.show(event, ...this.blockWords(found.block, [of, ["in", this.place(segment)]]), ...stack.map((line) => element("div", { class: "quiet" }, line)));
  }

  address(relative) {
    return `0x${(BigInt(`0x${this.run.meta.log.base}`) + BigInt(Math.round(relative))).toString(16)}`;
  }

  blockWords(i, more) {
    const { blocks, times, entries } = this.run;
    const born = blocks.born[i];
    const age = born === 0 ? "from before the first entry" : `${group(this.moment - born)} entries${times ? `, ${durationText(times.of(this.moment) - times.of(born))}` : ""}`;
    const until = blocks.freed[i] === NEVER ? (entries ? "beyond the recording" : "not in the file") : `entry ${group(blocks.freed[i] - 1)}`;
    const state = blocks.freed[i] <= this.moment ? "freed, pending" : "in use";
    const lines = [["bytes", group(blocks.size[i])], ["requested", `${group(blocks.requested[i])} bytes`], ["address", this.address(blocks.address[i])]];
    if (entries) lines.push(["requested at", born === 0 ? "before the first entry" : `entry ${group(born - 1)}`], ["age", age], ["freed at", until]);
    return [element("div", {}, swatch(this.colourOf(i)), element("b", {}, `${bytesText(blocks.size[i])}, ${state}`)), rows([...lines, ...more])];
  }

  /** The calls of a block's stack, innermost first. */
  stackOf(i) {
    const { meta, blocks } = this.run;
    const stack = blocks.stack[i] ? meta.stacks[blocks.stack[i] - 1] : [];
    return stack.map((frame) => { const [name, file, line] = meta.frames[frame]; return `${name}  ${file}:${line}`; });
  }

  /** What is beside the map: the sums of the moment, the sizes of the holes, and the block that was clicked. */
  describe() {
    const { heap } = this;
    const empty = heap.reserved - heap.active;
    const share = heap.reserved ? `${((empty / heap.reserved) * 100).toFixed(1)} % free` : "";
    const largest = heap.holes.reduce((most, hole) => Math.max(most, hole.size), 0);
    const content = [
      element("h3", {}, "At this moment"),
      rows([
        ["allocated", bytesText(heap.allocated)], ["active", bytesText(heap.active)], ["reserved", bytesText(heap.reserved)],
        ["blocks in use", group(heap.live)], ["segments", group(heap.segments.length)],
        ["free", `${bytesText(empty)}${share ? `, ${share}` : ""}`], ["largest hole", bytesText(largest)],
      ]),
      element("h3", {}, `${counted(heap.holes.length, "hole")} by size`), holeBars(heap.holes),
    ];
    if (this.pinned === null) {
      content.push(element("p", { class: "quiet" }, "Click a block to keep its details here."));
    } else {
      const stack = this.stackOf(this.pinned);
      content.push(element("h3", {}, "The block you clicked"), ...this.blockWords(this.pinned, []));
      content.push(stack.length ? element("ol", {}, ...stack.map((line) => { const [name, place] = line.split("  "); return element("li", {}, element("b", {}, name), element("br"), place); })) : element("p", { class: "quiet" }, "The file has no stack for it."));
    }
    this.details.replaceChildren(...content);
  }
}

/** The first of a segment's blocks that ends behind an address. */
function firstBlock(blocks, list, address) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (blocks.address[list[middle]] + blocks.size[list[middle]] <= address) low = middle + 1; else high = middle;
  }
  return low;
}

/** Hues from little to much, and at which share each is reached. */
const HUES = [[0, 178], [0.35, 205], [0.6, 232], [0.72, 268], [0.84, 316], [0.93, 352], [1, 384]];

/** Little to much, as a colour that both themes show. */
function ramp(share) {
  const s = Math.max(0, Math.min(1, share));
  const k = Math.max(1, HUES.findIndex(([at]) => at >= s));
  const [[from, low], [to, high]] = [HUES[k - 1], HUES[k]];
  return `hsl(${low + ((s - from) / (to - from)) * (high - low)} 54% ${theme.colours.light})`;
}

function holeBars(holes) {
  const classes = [["below 1 MiB", 2 ** 20], ["1 to 10 MiB", 10 * 2 ** 20], ["10 to 100 MiB", 100 * 2 ** 20], ["100 MiB to 1 GiB", 2 ** 30], ["1 GiB and more", Infinity]];
  const sums = classes.map(() => 0);
  for (const hole of holes) sums[classes.findIndex(([, below]) => hole.size < below)] += hole.size;
  const most = Math.max(1, ...sums);
  const bar = (bytes) => element("i", { style: `width:${(bytes / most) * 100}%` });
  return element("div", { class: "bars" }, ...classes.map(([words], k) => element("div", {}, element("span", {}, words.replace(" and more", "+").replace("100 MiB to 1 GiB", "to 1 GiB")), bar(sums[k]), element("span", {}, bytesText(sums[k])))));
}
