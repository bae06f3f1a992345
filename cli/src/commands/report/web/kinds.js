// The kinds of the memory in use at a moment, how they were recognised, and whether they live across the run's steps.

const LIVES = ["across steps", "within one step"];

class Kinds {
  /** `highlight` is called with a test of blocks, or with null. */
  constructor(section, run, colours, highlight) {
    Object.assign(this, { run, colours, highlight });
    this.body = section.querySelector(".by-kind tbody");
  }

  /** The kinds with their bytes and blocks, the largest first. */
  sums(moment, heap) {
    const { blocks, meta } = this.run;
    const sums = new Map();
    for (const i of heap.blocks) {
      if (blocks.freed[i] <= moment) continue;
      const [kind, how, life] = meta.told[blocks.told[i]];
      const sum = sums.get(kind) ?? { kind, bytes: 0, blocks: 0, hows: new Map(), lives: [0, 0, 0] };
      sum.bytes += blocks.size[i];
      sum.blocks += 1;
      sum.hows.set(how, (sum.hows.get(how) ?? 0) + blocks.size[i]);
      sum.lives[life] += blocks.size[i];
      sums.set(kind, sum);
    }
    return [...sums.values()].sort((a, b) => b.bytes - a.bytes || a.kind - b.kind);
  }

  show(moment, heap) {
    if (!this.run.hasKinds) return;
    const { kinds } = this.run.meta.palette;
    const sums = this.sums(moment, heap);
    const most = sums[0]?.bytes ?? 1;
    const row = (sum) => {
      const [name, colour] = kinds[sum.kind];
      const sign = this.colours.mode === "kind" ? [swatch(colour)] : [];
      const how = this.how(sum);
      const what = element("td", { class: "what" }, ...sign, name, ...(how ? [element("span", { class: "called" }, how)] : []));
      const shown = holderRow(sum, what, sum.bytes / most, heap.allocated);
      shown.addEventListener("pointerenter", () => this.highlight((i) => this.colours.kind(i) === sum.kind));
      shown.addEventListener("pointerleave", () => this.highlight(null));
      return shown;
    };
    this.body.replaceChildren(...(sums.length ? sums.map(row) : [nothingHeld()]));
  }

  /** How a kind was told, and how its blocks live against the steps. */
  how({ kind, bytes, hows, lives }) {
    const parts = [];
    const told = [...hows.entries()].sort((a, b) => b[1] - a[1]).map(([how]) => how);
    if (kind !== this.run.unknown) parts.push(`by ${told.join(", ")}`);
    const known = LIVES.map((words, place) => [words, lives[place]]).filter(([, held]) => held * 200 >= bytes);
    const share = (held) => (held * 200 >= bytes * 199 ? "" : `${((held / bytes) * 100).toFixed(0)} % `);
    if (known.length) parts.push(known.map(([words, held]) => share(held) + words).join(", "));
    return parts.join("; ");
  }
}
