// Compares the module for browsers with the program, in Node.js: each command of the page on each recording, on ranks, and on files that
// are none. Exit codes, standard output and standard error are the same to the byte, except for seconds that were measured. A file that
// needs more memory than a module can have is an error that names the command for the program.
//
//     node conformance/browser/same.mjs PARKADE MODULE [RECORDING...]
//
// PARKADE is the binary, for example target/release/parkade, and MODULE is target/wasm32-unknown-unknown/web/parkade_web.wasm. The default
// for RECORDING is every recording in the repository, and then also the file that needs too much memory, which takes 4 GiB.
//
// Exit code: 1 if anything differs, 2 if an argument is missing.

import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";
import { open } from "../../web/page/parkade.js";
import { fileOf } from "./files.mjs";

const [binary, modulePath, ...given] = process.argv.slice(2);
if (!binary || !modulePath) {
  console.error("usage: node conformance/browser/same.mjs PARKADE MODULE [RECORDING...]");
  process.exit(2);
}
const program = resolve(binary);
const module = await WebAssembly.compile(readFileSync(modulePath));
const recordings = resolve(import.meta.dirname, "../recordings");
const found = readdirSync(recordings, { recursive: true }).filter((name) => name.endsWith(".pickle.xz")).sort();
const chosen = given.length ? given.map((file) => relative(recordings, resolve(file))) : found;

const withoutSeconds = (text) => text.replaceAll(/"seconds":[0-9.e-]+/g, '"seconds":0');

let [compared, failures] = [0, 0];

async function compare(folder, paths, args) {
  const files = paths.map((path) => fileOf(folder, path));
  const { code, output, error } = (await open(module, files)).run(args);
  for (const file of files) file.close();
  const native = spawnSync(program, args, { cwd: folder, maxBuffer: 2 ** 30, env: { ...process.env, COLUMNS: "80" } });
  const differing = [
    native.status !== code && `exit code ${code}, not ${native.status}`,
    withoutSeconds(native.stdout.toString()) !== withoutSeconds(Buffer.from(output).toString()) && "standard output differs",
    native.stderr.toString() !== error && `standard error is ${JSON.stringify(error.slice(0, 300))}, not ${JSON.stringify(native.stderr.toString().slice(0, 300))}`,
  ].filter(Boolean);
  compared += 1;
  failures += differing.length > 0;
  if (differing.length) console.log(`FAILED parkade ${args.join(" ")}: ${differing.join("; ")}`);
}

const limitOf = (name) => /limit(\d+)/.exec(name)?.[1];

for (const name of chosen) {
  const limit = limitOf(name) ? ["--limit", `${limitOf(name)}GiB`] : [];
  await compare(recordings, [name], ["verify", "--json", name]);
  await compare(recordings, [name], ["diagnose", "--json", name, ...limit]);
  await compare(recordings, [name], ["advise", "--json", name, ...limit]);
  await compare(recordings, [name], ["report", name, ...limit, "-o", "-"]);
}

// Ranks, two runs, and files that are none or damaged.
const folder = mkdtempSync(join(tmpdir(), "parkade-same-"));
try {
  const bytes = (name) => readFileSync(join(recordings, `${name}.pickle.xz`));
  mkdirSync(join(folder, "run"));
  ["deep_mlp.default", "deep_mlp.expandable", "deep_mlp.default"].forEach((name, rank) => writeFileSync(join(folder, `run/rank${rank}.pickle.xz`), bytes(name)));
  const ranks = [0, 1, 2].map((rank) => `run/rank${rank}.pickle.xz`);
  for (const args of [["verify", "--json", "run"], ["diagnose", "run", "--json"], ["advise", "run", "--json", "--limit", "1GiB"], ["report", "run", "-o", "-"], ["diff", "run", "--json"], ["diff", ranks[0], ranks[1], "--json"], ["verify", ...ranks]]) {
    await compare(folder, ranks, args);
  }
  const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 139.81 GiB of which 122.92 GiB is free. 16.00 GiB allowed; Process 1 has 16.88 GiB memory in use. Of the allocated memory 13.17 GiB is allocated by PyTorch, and 2.34 GiB is reserved by PyTorch but unallocated.";
  const others = {
    "train.log": `step 1\n${message}\n`,
    "empty.pickle": "",
    "cut.pickle.xz": bytes("resnet50_sweep.default").subarray(0, 30_000),
    "cut.pickle": Buffer.from("800363745f5f6d61696e5f5f", "hex"),
    "picture.png": Buffer.from("89504e470d0a1a0a0000000d49484452", "hex"),
    "data.json": '{"a": [1, 2, 3]}',
  };
  for (const [name, content] of Object.entries(others)) {
    writeFileSync(join(folder, name), content);
    for (const args of [["verify", name], ["diagnose", name], ["diagnose", name, "--json"], ["report", name, "-o", "-"]]) await compare(folder, [name], args);
  }
} finally {
  rmSync(folder, { recursive: true });
}
/** A pickle of 1.2 GB: a list of small integers, each of which takes more memory than it has bytes. */
async function exhaust() {
  const head = Buffer.concat([Buffer.from("80027d5508", "hex"), Buffer.from("segments"), Buffer.from("5d28", "hex")]);
  const length = 1_200_000_000;
  const read = (offset, count) => {
    const bytes = Buffer.alloc(Math.min(count, length - offset));
    for (let at = 0; at < bytes.length; at += 1) bytes[at] = head[offset + at] ?? ((offset + at - head.length) % 2 ? 1 : 0x4b);
    return bytes;
  };
  const { code, error } = (await open(module, [{ path: "my file.pickle", length, read }])).run(["report", "my file.pickle", "-o", "-"]);
  const isSaid = code === 2 && error.includes("4 GiB") && error.endsWith("parkade report 'my file.pickle' -o report.html");
  if (!isSaid) console.log(`FAILED too little memory: ${error}`);
  failures += isSaid ? 0 : 1;
}
if (given.length === 0) await exhaust();

console.log(`${compared} commands compared with the program, ${failures} differ`);
process.exit(failures ? 1 : 0);
