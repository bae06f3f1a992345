// Which colour a block has, and which rows explain the colours. Kinds have the colours that their table shows. Stacks keep their colours over the whole run: those that ever held the most
// have their own, all others share one.

class Colours {
  constructor(run) {
    Object.assign(this, { run, palette: run.meta.palette, hasStacks: run.meta.stacks.length > 0 });
    // What blocks can be coloured by; the first is shown at first. Kinds are informative if passes were found, and say little if not.
    this.ways = [...(this.hasStacks ? ["stack"] : []), "size", "age"];
    if (run.hasKinds) this.ways.splice(run.meta.passes ? 0 : 1, 0, "kind");
    [this.mode] = this.ways;
    const most = this.mostHeld();
    const ranked = [...most.keys()].filter((stack) => stack > 0 && most[stack] > 0).sort((a, b) => most[b] - most[a] || a - b);
    this.ranks = new Map(ranked.slice(0, this.palette.stacks.length).map((stack, rank) => [stack, rank]));
    const next = ranked[this.palette.stacks.length];
    /** The most that a stack without its own colour ever held. */
    this.othersHold = next === undefined ? 0 : most[next];
  }

  /** The most bytes that each stack ever held at once. */
  mostHeld() {
    const { blocks, moments, meta } = this.run;
    const [held, most] = [new Float64Array(meta.stacks.length + 1), new Float64Array(meta.stacks.length + 1)];
    // The blocks by the moment of their release.
    const starts = new Uint32Array(moments + 2);
    for (let i = 0; i < blocks.count; i += 1) starts[Math.min(blocks.freed[i], moments) + 1] += 1;
    for (let m = 1; m < starts.length; m += 1) starts[m] += starts[m - 1];
    const byRelease = new Uint32Array(blocks.count);
    for (let i = 0; i < blocks.count; i += 1) byRelease[starts[Math.min(blocks.freed[i], moments)]++] = i;
    let released = 0;
    for (let i = 0; i < blocks.count; i += 1) {
      for (; blocks.freed[byRelease[released]] <= blocks.born[i]; released += 1) {
        const other = byRelease[released];
        if (blocks.freed[other] > blocks.born[other]) held[blocks.stack[other]] -= blocks.size[other];
      }
      if (blocks.freed[i] <= blocks.born[i]) continue;
      const stack = blocks.stack[i];
      held[stack] += blocks.size[i];
      most[stack] = Math.max(most[stack], held[stack]);
    }
    return most;
  }

  /** What groups a block with others: its stack, or its size if the file has no stacks. */
  group(i) { return this.hasStacks ? this.run.blocks.stack[i] : this.run.blocks.size[i]; }

  /** The colour of a group's blocks, if they all have one. */
  ofGroup(group) {
    if (this.mode === "stack") return this.ofStack(group);
    return this.mode === "size" && !this.hasStacks ? this.ofSize(group) : null;
  }

  ofStack(stack) {
    if (stack === 0) return this.palette.no_stack;
    return this.palette.stacks[this.ranks.get(stack)] ?? this.palette.other_stacks;
  }

  ofSize(size) { return this.palette.sizes.find(([below]) => size < below)[2]; }

  ofAge(i, moment) {
    const { blocks, entries } = this.run;
    const share = blocks.born[i] === 0 && entries ? Infinity : (moment - blocks.born[i]) / Math.max(1, entries);
    return (this.palette.ages.find(([below]) => share < below) ?? this.palette.ages.at(-1))[2];
  }

  /** The number of a block's kind. */
  kind(i) { return this.run.meta.told[this.run.blocks.told[i]][0]; }

  of(i, moment) {
    const { blocks } = this.run;
    if (blocks.freed[i] <= moment) return theme.colours.pending;
    if (this.mode === "kind") return this.palette.kinds[this.kind(i)][1];
    if (this.mode === "stack") return this.ofStack(blocks.stack[i]);
    return this.mode === "age" ? this.ofAge(i, moment) : this.ofSize(blocks.size[i]);
  }

  /** The rows that explain the colours of a heap. Stacks are named in the table of holders. */
  legend(heap, moment) {
    const rows = [];
    if (heap.holes.length) rows.push(["free", theme.colours.free, "outlined"]);
    if (heap.pending) rows.push(["freed, still used by another stream", theme.colours.pending]);
    const used = new Set(heap.blocks.map((i) => this.of(i, moment)));
    const classes = { size: this.palette.sizes, age: this.palette.ages }[this.mode];
    if (this.mode === "kind") {
      for (const [name, colour] of this.palette.kinds) if (used.has(colour)) rows.push([name, colour]);
    } else if (classes) {
      const words = this.mode === "age" ? (text) => `in use ${text}` : (text) => text;
      for (const [, text, colour] of classes) if (used.has(colour)) rows.push([words(text), colour]);
    } else {
      if (used.has(this.palette.other_stacks)) rows.push([`other stacks, each never more than ${bytesText(this.othersHold)}`, this.palette.other_stacks]);
      if (used.has(this.palette.no_stack)) rows.push(["no stack in the file", this.palette.no_stack]);
      if (this.ranks.size) rows.push(["a stack each: named under “Who holds the memory”", "linear-gradient(90deg," + this.palette.stacks.slice(0, 4).map((colour, k) => `${colour} ${k * 25}% ${k * 25 + 25}%`).join() + ")", "strip"]);
    }
    return rows;
  }
}
