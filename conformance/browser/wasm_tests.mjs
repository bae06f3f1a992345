// Runs a test program that was built for wasm32-unknown-unknown: cargo calls it with the program's path.
//
//     CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER="node conformance/browser/wasm_tests.mjs" \
//         cargo test --lib -p parkade-recording -p parkade-replay --target wasm32-unknown-unknown
//
// That target has no output and no arguments, so all tests run, and what they print is lost: the stack of the first that fails names it.
//
// Exit code: 1 if a test fails.

import { readFileSync } from "node:fs";
import { basename } from "node:path";

const program = process.argv[2];
const { instance } = await WebAssembly.instantiate(readFileSync(program), {});
try {
  const code = instance.exports.main(0, 0);
  console.log(`${basename(program)}: ${code === 0 ? "all tests passed" : `exit code ${code}`}`);
  process.exit(code === 0 ? 0 : 1);
} catch (error) {
  const names = [...error.stack.matchAll(/_ZN(\d+)(\S*?)17h[0-9a-f]{16}E/g)].map(([, , name]) => name.replaceAll(/\d+/g, "::"));
  console.log(`${basename(program)}: FAILED (${error.message}): ${names.find((name) => name.includes("tests")) ?? error.stack}`);
  process.exit(1);
}
