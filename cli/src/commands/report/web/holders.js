// Who holds the memory at a moment: by stack, or by block size if the file has no stacks. The table names the colours of the heap.

/** How many groups have a row; with stacks, all those with their own colour do. */
const HOLDERS = 16;

/** The calls of a stack, innermost first: function, file, line, whether it is the user's own code. */
const callsOf = (run, stack) => run.meta.stacks[stack - 1].map((frame) => run.meta.frames[frame]);

/** A call as parts of a line; the user's own code is bold. */
const callLine = ([name, file, line, isOwn]) => [element(isOwn ? "b" : "span", {}, name), file ? ` ${file}:${line}` : ""];

const callList = (run, stack) => element("ol", { class: "calls" }, ...callsOf(run, stack).slice(0, 60).map((call) => element("li", { class: call[3] ? "own" : null }, ...callLine(call))));

/** A row of a table of holders; `share` is that of its bar. */
function holderRow(sum, what, share, allocated, isRest = false) {
  return element("tr", isRest ? { class: "rest" } : {},
    what,
    element("td", { class: "number", title: `${group(sum.bytes)} bytes` }, bytesText(sum.bytes)),
    element("td", { class: "share" }, ...(isRest ? [] : [element("i", { style: `width:${share * 100}%` })]), element("span", {}, `${((sum.bytes / Math.max(1, allocated)) * 100).toFixed(1)} %`)),
    element("td", { class: "number" }, group(sum.blocks)));
}

const nothingHeld = () => element("tr", {}, element("td", { class: "what", colspan: 4 }, "Nothing is allocated at this moment."));

class Holders {
  /** `highlight` is called with a test of blocks, or with null. */
  constructor(section, run, colours, highlight) {
    Object.assign(this, { run, colours, highlight, kept: null });
    this.title = section.querySelector(".holders-title");
    this.body = section.querySelector(".by-stack tbody");
  }

  /** Groups with their bytes and blocks, the largest first. */
  groups(moment, heap) {
    const { blocks } = this.run;
    const sums = new Map();
    for (const i of heap.blocks) {
      if (blocks.freed[i] <= moment) continue;
      const group = this.colours.group(i);
      const sum = sums.get(group) ?? { group, bytes: 0, blocks: 0 };
      sum.bytes += blocks.size[i];
      sum.blocks += 1;
      sums.set(group, sum);
    }
    return [...sums.values()].sort((a, b) => b.bytes - a.bytes || a.group - b.group);
  }

  show(moment, heap) {
    const { run, colours } = this;
    const groups = this.groups(moment, heap);
    // Every stack with its own colour has a row.
    const listed = groups.filter(({ group }, place) => place < HOLDERS || (colours.hasStacks && (group === 0 || colours.ranks.has(group))));
    const rest = groups.filter((group) => !listed.includes(group));
    const most = groups[0]?.bytes ?? 1;
    const row = (sum, what, isRest) => {
      const shown = holderRow(sum, what, sum.bytes / most, heap.allocated, isRest);
      const members = new Set(isRest ? rest.map((one) => one.group) : [sum.group]);
      const shine = (i) => members.has(colours.group(i));
      shown.addEventListener("pointerenter", () => this.highlight(shine));
      shown.addEventListener("pointerleave", () => this.highlight(null));
      return shown;
    };
    const list = listed.map((sum) => row(sum, this.what(sum.group), false));
    if (rest.length) {
      const sum = { bytes: rest.reduce((all, one) => all + one.bytes, 0), blocks: rest.reduce((all, one) => all + one.blocks, 0) };
      list.push(row(sum, element("td", { class: "what" }, ...this.sign(rest.map((one) => one.group)), counted(rest.length, "other")), true));
    }
    if (!list.length) list.push(nothingHeld());
    this.body.replaceChildren(...list);
    const by = colours.hasStacks ? "by where it was requested" : "by block size, because the file has no stacks";
    this.title.textContent = `${bytesText(heap.allocated)}${run.entries ? ` after ${group(moment)} of ${group(run.entries)} entries` : " in use"}, ${by}`;
  }

  /** The colour of these groups in the heap, if they have one in common. */
  sign(groups) {
    const found = new Set(groups.map((group) => this.colours.ofGroup(group)));
    const [colour] = found;
    return found.size === 1 && colour ? [swatch(colour)] : [];
  }

  what(group) {
    const { run, colours } = this;
    const sign = this.sign([group]);
    if (!colours.hasStacks) return element("td", { class: "what" }, ...sign, `blocks of ${bytesText(group)}`);
    if (group === 0) return element("td", { class: "what" }, ...sign, "no stack in the file");
    const [own, called] = run.meta.stack_names[group - 1];
    const name = element("summary", {}, ...sign, own, ...(called ? [element("span", { class: "called" }, called)] : []));
    return element("td", { class: "what" }, element("details", {}, name, callList(run, group)));
  }
}
