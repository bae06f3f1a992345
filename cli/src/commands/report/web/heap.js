// The heap at a moment: segments to scale, grouped by pool and stream, large ones first. A segment longer than a row continues in the
// next. Blocks are coloured; holes keep the segment's colour.

/** Rows, the space from one to the next, the space between segments, headings, in units of `px`; and how many rows the heap fills. */
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
  const heap = { segments, blocks: live, pending: 0, allocated: 0, active: 0, reserved: 0, holes: [] };
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
  constructor(section, run, colours) {
    Object.assign(this, { run, colours, moment: -1, heap: null, pieces: [], pinned: null, shine: null, scale: 1 });
    const find = (name) => section.querySelector(name);
    this.canvas = find(".heap");
    this.scroller = find(".scroller");
    this.details = find(".details");
    this.key = find(".key");
    this.peak = Math.max(1, run.overview.reserved.range(0, run.entries)[1]);
    this.draw = onFrame(() => this.paint());
    find(".scale").addEventListener("change", (event) => { this.scale = Number(event.target.value); this.draw(); });
    this.canvas.addEventListener("pointermove", (event) => this.hint(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.scroller.addEventListener("scroll", () => this.fade());
    this.canvas.addEventListener("click", (event) => {
      const found = this.find(event);
      this.pinned = found && found.block !== undefined ? found.block : null;
      this.describe();
      this.draw();
    });
  }

  /** Fades the lower edge while there is more below it. */
  fade() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.scroller.classList.toggle("more", scrollHeight - scrollTop > clientHeight + 2);
  }

  /** Dims all blocks but those for which `shine` holds; none if it is null. */
  highlight(shine) {
    this.shine = shine;
    this.draw();
  }

  show(moment, heap) {
    const { blocks } = this.run;
    Object.assign(this, { moment, heap });
    if (this.pinned !== null && !(blocks.born[this.pinned] <= moment && moment < blocks.gone[this.pinned])) this.pinned = null;
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
      context.fillText(words, 0, y, width);
    }
    const { blocks } = run;
    const row = px(ROW);
    for (const { x, y, length, from, segment } of pieces) {
      context.fillStyle = colours["free-line"];
      context.fillRect(x, y, length, row);
      context.fillStyle = colours.free;
      context.fillRect(x + 0.5, y + 0.5, Math.max(0.5, length - 1), row - 1);
      const to = from + length * perPixel;
      for (let k = firstBlock(blocks, segment.blocks, from); k < segment.blocks.length; k += 1) {
        const i = segment.blocks[k];
        if (blocks.address[i] >= to) break;
        const left = x + (Math.max(from, blocks.address[i]) - from) / perPixel;
        const right = x + (Math.min(to, blocks.address[i] + blocks.size[i]) - from) / perPixel;
        if (right <= left) continue;
        context.fillStyle = this.colours.of(i, this.moment);
        context.globalAlpha = this.shine && !this.shine(i) ? 0.15 : 1;
        const gap = right - left > 3 ? 0.6 : 0;
        context.fillRect(left, y, Math.max(0.4, right - left - gap), row);
        context.globalAlpha = 1;
        if (i === this.pinned) {
          context.strokeStyle = colours.ink;
          context.lineWidth = px(2);
          context.strokeRect(left, y, Math.max(2, right - left), row);
        }
      }
    }
    Object.assign(this, { pieces, perPixel });
    const list = this.colours.legend(heap, this.moment);
    if (this.pinned !== null) list.push(["the block you clicked", colours.ink, "frame"]);
    showLegend(this.key, list);
    this.fade();
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
    const [step, gap] = [px(STEP), px(GAP)];
    let y = 0;
    for (const { segments, bytes } of [...groups.values()].sort((a, b) => b.bytes - a.bytes)) {
      segments.sort((a, b) => (b.end - b.address) - (a.end - a.address) || a.address - b.address);
      headings.push({ y: y + px(14), words: `${this.place(segments[0])}: ${counted(segments.length, "segment")}, ${bytesText(bytes)}` });
      y += px(HEADING);
      let x = 0;
      for (const segment of segments) {
        const total = Math.max(2, (segment.end - segment.address) / perPixel);
        if (x > 0 && x + total > width && total <= width) [x, y] = [0, y + step];
        for (let done = 0; total - done > 0.01;) {
          if (x >= width - 1) [x, y] = [0, y + step];
          const length = Math.min(total - done, width - x);
          pieces.push({ x, y, length, from: segment.address + done * perPixel, segment });
          done += length;
          x += length;
        }
        x += gap;
      }
      y += step + px(8);
    }
    if (y <= MOST_HEIGHT) return { pieces, headings, height: Math.max(40, y) };
    // A canvas has a maximum height: segments that do not fit whole are only counted.
    const bottom = MOST_HEIGHT - px(HEADING);
    const hidden = new Set(pieces.filter((piece) => piece.y + px(ROW) > bottom).map((piece) => piece.segment));
    const shown = pieces.filter((piece) => !hidden.has(piece.segment));
    const end = shown.reduce((most, piece) => Math.max(most, piece.y + step), 0);
    const kept = headings.filter((heading) => heading.y < end);
    kept.push({ y: end + px(14), words: `and ${counted(hidden.size, "more segment")}` });
    return { pieces: shown, headings: kept, height: end + px(HEADING) };
  }

  place(segment) {
    const { streams, pools } = this.run.meta.log;
    const pool = pools[segment.pool];
    const name = pool.every((part) => part === "0") ? "default pool" : `private pool (${pool.join(", ")})`;
    return `${name}, stream ${streams[segment.stream] === "0" ? "0 (default)" : streams[segment.stream]}`;
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const piece = this.pieces.find((p) => y >= p.y && y < p.y + px(ROW) && x >= p.x && x < p.x + Math.max(2, p.length));
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
    tip.show(event, ...this.calls(found.block, 4), ...this.blockWords(found.block, [of, ["in", this.place(segment)]]));
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
    if (this.run.hasKinds) lines.push(["kind", this.kindWords(i)]);
    return [element("div", {}, swatch(this.colours.of(i, this.moment)), element("b", {}, `${bytesText(blocks.size[i])}, ${state}`)), rows([...lines, ...more])];
  }

  kindWords(i) {
    const [kind, how, life] = this.run.meta.told[this.run.blocks.told[i]];
    const { kinds } = this.run.meta.palette;
    return [kinds[kind][0], ...(kind === this.run.unknown ? [] : [`by ${how}`]), ...(LIVES[life] ? [LIVES[life]] : [])].join(", ");
  }

  /** The user's own call, then the innermost calls, without those through which each module of PyTorch is called. */
  calls(i, most) {
    const { blocks, meta } = this.run;
    const stack = blocks.stack[i];
    if (stack === 0) return [];
    const calls = callsOf(this.run, stack);
    const own = calls[meta.own_calls[stack - 1] ?? -1];
    const others = calls.filter((call) => call !== own && !/^_(wrapped_)?call_impl$/.test(call[0])).slice(0, most);
    return [...(own ? [callLine(own)] : []), ...others.map((call) => callLine(call))].map((line) => element("div", { class: "call" }, ...line));
  }

  /** What is beside the map: the sums of the moment, the sizes of the holes, and the block that was clicked. */
  describe() {
    const { heap } = this;
    const empty = heap.reserved - heap.active;
    const share = heap.reserved ? `${((empty / heap.reserved) * 100).toFixed(1)} % free` : "";
    const largest = heap.holes.reduce((most, hole) => Math.max(most, hole.size), 0);
    const now = element("div", {}, element("h3", {}, "At this moment"), rows([
      ["allocated", bytesText(heap.allocated)], ["active", bytesText(heap.active)], ["reserved", bytesText(heap.reserved)],
      ["blocks in use", group(heap.blocks.length)], ["segments", group(heap.segments.length)],
      ["free", `${bytesText(empty)}${share ? `, ${share}` : ""}`], ["largest hole", bytesText(largest)],
    ]));
    const holes = element("div", {}, element("h3", {}, `${counted(heap.holes.length, "hole")} by size`), holeBars(heap.holes));
    const block = element("div", { class: "clicked" }, element("h3", {}, "The block you clicked"));
    if (this.pinned === null) {
      block.append(element("p", { class: "quiet" }, "None yet. Click a block to keep its details here."));
    } else {
      const stack = this.run.blocks.stack[this.pinned];
      block.append(...this.blockWords(this.pinned, []));
      block.append(stack ? callList(this.run, stack) : element("p", { class: "quiet" }, "The file has no stack for it."));
    }
    this.details.replaceChildren(now, holes, block);
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

function holeBars(holes) {
  const classes = [["below 1 MiB", 2 ** 20], ["1 to 10 MiB", 10 * 2 ** 20], ["10 to 100 MiB", 100 * 2 ** 20], ["100 MiB to 1 GiB", 2 ** 30], ["1 GiB and more", Infinity]];
  const sums = classes.map(() => 0);
  for (const hole of holes) sums[classes.findIndex(([, below]) => hole.size < below)] += hole.size;
  const most = Math.max(1, ...sums);
  const bar = (bytes) => element("i", { style: `width:${(bytes / most) * 100}%` });
  return element("div", { class: "bars" }, ...classes.map(([words], k) => element("div", {}, element("span", {}, words.replace(" and more", "+").replace("100 MiB to 1 GiB", "to 1 GiB")), bar(sums[k]), element("span", {}, bytesText(sums[k])))));
}
