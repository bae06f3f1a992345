"use strict";
(() => {
// Unpacks the data of the page: typed arrays of the lives of blocks and segments, and curves, laid out as by the timeline module.
// A moment is the number of entries done.

const NEVER = 0xffffffff;

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const meta = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = new Map();
  let at = 4 + length;
  for (const [name, size] of meta.columns) {
    columns.set(name, bytes.subarray(at, at + size));
    at += size;
  }
  return { meta, columns };
}

/** Calls `each(number, place)` for so many numbers of a column. */
function numbers(bytes, count, each) {
  let at = 0;
  for (let place = 0; place < count; place += 1) {
    let byte = bytes[at++];
    let number = byte & 127;
    let scale = 128;
    while (byte > 127) {
      byte = bytes[at++];
      number += (byte & 127) * scale;
      scale *= 128;
    }
    each(number, place);
  }
}

const unfold = (number) => (number % 2 ? -(number + 1) / 2 : number / 2);

/** Differences to the number before, as the numbers. */
function sums(bytes, count, list) {
  let sum = 0;
  numbers(bytes, count, (number, i) => {
    sum += unfold(number);
    list[i] = sum;
  });
  return list;
}

function lives(columns, name, count, unit) {
  const column = (field) => columns.get(`${name}_${field}`);
  const born = new Uint32Array(count);
  const gone = new Uint32Array(count);
  const size = new Float64Array(count);
  let last = 0;
  numbers(column("born"), count, (number, i) => { born[i] = last += number; });
  const address = sums(column("address"), count, new Float64Array(count));
  for (let i = 0; i < count; i += 1) address[i] *= unit;
  numbers(column("size"), count, (number, i) => { size[i] = number * unit; });
  return { count, born, gone, size, address };
}

function readBlocks(meta, columns) {
  const blocks = lives(columns, "block", meta.log.blocks, meta.log.unit);
  const { count, born, gone, size } = blocks;
  blocks.freed = new Uint32Array(count);
  blocks.requested = new Float64Array(count);
  blocks.stack = new Uint32Array(count);
  blocks.told = new Uint16Array(meta.told.length ? count : 0);
  numbers(columns.get("block_requested"), count, (number, i) => { blocks.requested[i] = size[i] - unfold(number); });
  numbers(columns.get("block_freed"), count, (number, i) => { blocks.freed[i] = number ? born[i] + number - 1 : NEVER; });
  numbers(columns.get("block_gone"), count, (number, i) => { gone[i] = number ? blocks.freed[i] + number - 1 : NEVER; });
  numbers(columns.get("block_stack"), count, (number, i) => { blocks.stack[i] = number; });
  sums(columns.get("block_told"), blocks.told.length, blocks.told);
  return blocks;
}

function readSegments(meta, columns) {
  const segments = lives(columns, "segment", meta.log.segments, meta.log.unit);
  const { count, born, gone } = segments;
  segments.stream = new Uint32Array(count);
  segments.pool = new Uint32Array(count);
  segments.expandable = new Uint8Array(count);
  numbers(columns.get("segment_stream"), count, (number, i) => { segments.stream[i] = number; });
  numbers(columns.get("segment_pool"), count, (number, i) => { segments.pool[i] = number; });
  numbers(columns.get("segment_expandable"), count, (number, i) => { segments.expandable[i] = number; });
  numbers(columns.get("segment_gone"), count, (number, i) => { gone[i] = number ? born[i] + number - 1 : NEVER; });
  return segments;
}

/** The sum of the sizes of what was there, at every moment. */
function levelOf(born, gone, size, moments) {
  const level = new Float64Array(moments);
  for (let i = 0; i < born.length; i += 1) {
    level[born[i]] += size[i];
    if (gone[i] < moments) level[gone[i]] -= size[i];
  }
  for (let m = 1; m < moments; m += 1) level[m] += level[m - 1];
  return level;
}

/** Least and most of any stretch of a level, from coarser and coarser copies. */
class Pyramid {
  constructor(min, max, moments) {
    this.moments = moments;
    this.count = min.length;
    this.layers = [[min, max]];
    while (min.length > 8) {
      const length = Math.ceil(min.length / 8);
      const [lower, upper] = [new Float64Array(length), new Float64Array(length)];
      for (let i = 0; i < length; i += 1) {
        let [least, most] = [Infinity, -Infinity];
        for (let j = i * 8, end = Math.min(j + 8, min.length); j < end; j += 1) {
          if (min[j] < least) least = min[j];
          if (max[j] > most) most = max[j];
        }
        lower[i] = least;
        upper[i] = most;
      }
      [min, max] = [lower, upper];
      this.layers.push([min, max]);
    }
  }

  get isExact() { return this.count === this.moments; }

  place(moment) { return this.isExact ? moment : Math.min(this.count - 1, Math.floor(((moment + 1) * this.count - 1) / this.moments)); }

  /** Of the moments from `first` to `last`, both included. */
  range(first, last) {
    const { least, most } = this.ranges([first], [last]);
    return [least[0], most[0]];
  }

  /** The same of several stretches. It is called for every pixel of every frame, so it makes nothing but its answer. */
  ranges(first, last) {
    const { length } = first;
    const [least, most] = [new Float64Array(length), new Float64Array(length)];
    const top = this.layers.length - 1;
    for (let i = 0; i < length; i += 1) {
      let from = this.place(first[i]);
      let to = this.place(last[i]) + 1;
      let low = Infinity;
      let high = -Infinity;
      for (let layer = 0; from < to; layer += 1) {
        const min = this.layers[layer][0];
        const max = this.layers[layer][1];
        for (; from < to && (from & 7 || layer === top); from += 1) {
          if (min[from] < low) low = min[from];
          if (max[from] > high) high = max[from];
        }
        while (from < to && to & 7) {
          to -= 1;
          if (min[to] < low) low = min[to];
          if (max[to] > high) high = max[to];
        }
        from >>= 3;
        to >>= 3;
      }
      least[i] = low;
      most[i] = high;
    }
    return { least, most };
  }
}

/** Times of moments, in microseconds since the first entry. Between samples they are interpolated. */
class Times {
  constructor({ every, count, start_us, duration_us }, bytes, entries) {
    this.start = start_us;
    this.duration = duration_us;
    this.isExact = every === 1;
    this.entries = new Float64Array(count);
    this.times = new Float64Array(count);
    let last = 0;
    numbers(bytes, count, (number, i) => {
      this.times[i] = last += number;
      this.entries[i] = Math.min(i * every, entries - 1);
    });
  }

  of(moment) { return interpolate(this.entries, this.times, Math.max(0, moment - 1)); }

  /** The last moment at or before a time, as a fraction. */
  moment(time) { return time < 0 ? 0 : interpolate(this.times, this.entries, time) + 1; }
}

function interpolate(xs, ys, x) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1; else high = middle;
  }
  if (low === 0) return ys[0];
  if (low === xs.length) return ys[low - 1];
  const share = (x - xs[low - 1]) / (xs[low] - xs[low - 1]);
  return ys[low - 1] + share * (ys[low] - ys[low - 1]);
}

async function readRun(text) {
  const { meta, columns } = await unpack(text);
  const moments = meta.entries + 1;
  const run = { meta, moments, entries: meta.entries, blocks: readBlocks(meta, columns), segments: readSegments(meta, columns) };
  const curve = (name, count, of = moments) => {
    const read = (end) => sums(columns.get(`${name}_${end}`), count, new Float64Array(count));
    return new Pyramid(read("min"), read("max"), of);
  };
  run.overview = Object.fromEntries(["allocated", "active", "reserved"].map((name) => [name, curve(name, meta.buckets)]));
  /** The number of the kind "unknown", the last. */
  run.unknown = meta.palette.kinds.length - 1;
  run.hasKinds = meta.told.some(([kind]) => kind !== run.unknown);
  // For a run that died, what is tried ends at the error and continues with the estimate.
  run.drawn = meta.rest ? meta.rest.entries + 1 : moments;
  run.tried = meta.tried.map((tried, i) => ({ ...tried, curve: curve(`tried_${i}`, tried.buckets, run.drawn) }));
  run.rest = meta.rest && { ...meta.rest, inUse: curve("rest", meta.rest.buckets, run.drawn) };
  run.times = meta.times ? new Times(meta.times, columns.get("times"), meta.entries) : null;
  if (meta.moments) {
    run.levels = run.overview;
  } else {
    const { blocks, segments } = run;
    const level = (born, gone, size) => { const l = levelOf(born, gone, size, moments); return new Pyramid(l, l, moments); };
    run.levels = {
      allocated: level(blocks.born, blocks.freed, blocks.size),
      active: level(blocks.born, blocks.gone, blocks.size),
      reserved: level(segments.born, segments.gone, segments.size),
    };
  }
  return run;
}
