// parkade as a function: the arguments of a command and its files in, its answer out. Runs in a worker of the page (worker.js) and in
// Node.js (conformance/browser/same.mjs). A file is {path, length, read(offset, length) -> Uint8Array}: it is read piece by piece, so
// that only the part that is needed is in memory.

const inShell = (arg) => (/^[\w./:,=@%+-]+$/.test(arg) ? arg : `'${arg.replaceAll("'", "'\\''")}'`);

/** A command of the program, as a shell takes it; a page goes to a file. */
const commandLine = (args) => ["parkade", ...args.map((arg) => (arg === "-" ? "report.html" : arg))].map(inShell).join(" ");

/** Whether the module, or the copy of its answer, failed for want of memory. Browsers name a recursion that is too deep in the same way. */
const isMemory = (error) =>
  error instanceof WebAssembly.RuntimeError ? /unreachable/i.test(error.message) : error instanceof RangeError && !/call stack|recursion/i.test(error.message);

/** The answer of a command that this error ended; `bug` is the message of the module's panic, if it had one. */
export function failed(args, error, bug) {
  const program = `Run it with the program instead: ${commandLine(args)}`;
  const isBug = bug !== undefined || !isMemory(error);
  const why = isBug
    ? `This is a bug in parkade or in the browser: ${bug === undefined ? error : `${bug} (${error})`}. ${program}`
    : `This needs more memory than a page in a browser can use (at most 4 GiB, and less if the machine has little). ${program}`;
  return { code: 2, output: new Uint8Array(), error: why };
}

/**
 * Returns an instance with these files. Several commands may run in it, one after the other; after a failure it cannot be used again.
 * `onProgress(done, total, unit)` is called while a command works.
 */
export async function open(module, files, onProgress = () => {}) {
  const words = new TextDecoder();
  let exports, bug;
  const bytes = (at, length) => new Uint8Array(exports.memory.buffer, at >>> 0, length);
  const parkade = {
    read(number, offset, to, length) {
      try {
        const piece = files[number].read(offset, length);
        bytes(to, length).set(piece);
        return piece.length;
      } catch {
        return -1;
      }
    },
    now_ms: () => performance.now(),
    progress: (done, total, unit, length) => onProgress(done, total, words.decode(bytes(unit, length))),
    bug: (message, length) => void (bug = words.decode(bytes(message, length))),
  };
  exports = (await WebAssembly.instantiate(module, { parkade })).exports;
  const put = (text) => {
    const encoded = new TextEncoder().encode(text);
    const at = exports.text(encoded.length);
    bytes(at, encoded.length).set(encoded);
  };
  for (const file of files) {
    put(file.path);
    exports.file(file.length);
  }
  const part = (number) => bytes(exports.part(number), exports.part_length(number));
  return {
    memoryBytes: () => exports.memory.buffer.byteLength,
    /** Runs a command; `isHtml` chooses fragments of HTML instead of text as the form of answers for people. */
    run(args, isHtml = false) {
      try {
        put(["parkade", ...args].join("\n"));
        const code = exports.run(isHtml);
        // The bytes are copied out of the module's memory.
        return { code, output: part(0).slice(), error: words.decode(part(1)) };
      } catch (error) {
        return failed(args, error, bug);
      }
    },
  };
}
