// Runs a command of the module for browsers in Node.js, as the program runs it, and prints on standard error how much memory it took.
//
//     node conformance/browser/run.mjs MODULE COMMAND [ARGUMENT...]
//
// MODULE is target/wasm32-unknown-unknown/web/parkade_web.wasm. The exit code is the command's.

import { readFileSync, statSync, writeSync } from "node:fs";
import { open } from "../../web/page/parkade.js";
import { fileOf } from "./files.mjs";

const [modulePath, ...args] = process.argv.slice(2);
if (args.length === 0) {
  console.error("usage: node conformance/browser/run.mjs MODULE COMMAND [ARGUMENT...]");
  process.exit(2);
}
const isFile = (path) => statSync(path, { throwIfNoEntry: false })?.isFile();
const instance = await open(await WebAssembly.compile(readFileSync(modulePath)), args.filter(isFile).map((path) => fileOf(".", path)));
const { code, output, error } = instance.run(args);
for (let written = 0; written < output.length; ) written += writeSync(1, output, written);
process.stderr.write(`${error}${(instance.memoryBytes() / 2 ** 20).toFixed(0)} MiB\n`);
process.exitCode = code;
