// Makes the page of the module and the files in web/page: a folder of static files, and one file that contains them all.
//
//     node web/assemble.mjs MODULE OUT_FOLDER
//
// Both forms run the same script, which looks for its parts inside the page and then next to it. A page may run only the scripts that its
// Content-Security-Policy names: its own, and the one of every report, whose text is always the same.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { open } from "./page/parkade.js";

const [modulePath, out] = process.argv.slice(2);
if (!modulePath || !out) {
  console.error("usage: node web/assemble.mjs MODULE OUT_FOLDER");
  process.exit(2);
}
const root = resolve(import.meta.dirname, "..");
const text = (name) => readFileSync(join(import.meta.dirname, "page", name), "utf8");
const wasm = readFileSync(modulePath);
const example = readFileSync(join(root, "conformance/recordings/gpt2_varlen.limit16_gc.pickle.xz"));
const [, version] = /^version = "(.*)"$/m.exec(readFileSync(join(root, "Cargo.toml"), "utf8"));

/** A source of a policy that allows exactly this script or style. */
const hash = (source) => `'sha256-${createHash("sha256").update(source).digest("base64")}'`;

/** The script of a report, taken from one. */
async function reportScript() {
  const file = { path: "example", length: example.length, read: (offset, length) => example.subarray(offset, offset + length) };
  const { code, output, error } = (await open(await WebAssembly.compile(wasm), [file])).run(["report", "example", "-o", "-"]);
  const scripts = new TextDecoder().decode(output).split("<script>").slice(1).map((rest) => rest.split("</script>")[0]);
  if (code !== 0 || scripts.length !== 1) throw new Error(`the example has no report with one script: ${error}`);
  return scripts[0];
}

/** The policy of a page: where its script may come from, and what it may request. */
const policy = async (script, connect) =>
  [
    "default-src 'none'",
    `script-src ${script} ${hash(await reportScript())} 'wasm-unsafe-eval'`,
    // Answers and reports have styles in their elements.
    `style-src ${connect === "'none'" ? "" : "'self' "}'unsafe-inline'`,
    "worker-src blob:",
    "frame-src blob:",
    "img-src data: blob:",
    `connect-src ${connect}`,
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");

const fill = (template, values) => template.replaceAll(/\{\{(\w+)\}\}/g, (_, name) => values[name]);
const page = text("index.html");
const script = text("page.js");
// A worker made of a blob cannot import.
const worker = `${text("parkade.js").replaceAll(/^export /gm, "")}\n${text("worker.js")}`;
const assets = { "parkade.wasm.gz": gzipSync(wasm, { level: 9 }), "worker.js": Buffer.from(worker), "example.pickle.xz": example };

const site = join(out, "site");
rmSync(site, { recursive: true, force: true });
mkdirSync(site, { recursive: true });
for (const [name, bytes] of Object.entries(assets)) writeFileSync(join(site, name), bytes);
writeFileSync(join(site, "page.js"), script);
writeFileSync(join(site, "style.css"), text("style.css"));
writeFileSync(join(site, "index.html"), fill(page, {
  version,
  policy: await policy("'self'", "'self'"),
  style: '<link rel="stylesheet" href="style.css">',
  assets: "",
  script: '<script type="module" src="page.js"></script>',
}));
const single = fill(page, {
  version,
  policy: await policy(hash(`\n${script}`), "'none'"),
  style: `<style>\n${text("style.css")}</style>`,
  assets: Object.entries(assets).map(([name, bytes]) => `<script type="text/plain" id="asset-${name}">${bytes.toString("base64")}</script>`).join("\n"),
  script: `<script type="module">\n${script}</script>`,
});
writeFileSync(join(out, "parkade.html"), single);

const brotli = brotliCompressSync(wasm, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: wasm.length } });
const count = (number) => number.toLocaleString("en");
console.log(`module: ${count(wasm.length)} bytes, with gzip ${count(assets["parkade.wasm.gz"].length)}, with brotli ${count(brotli.length)}`);
console.log(`${site}/index.html, and ${join(out, "parkade.html")} (${count(Buffer.byteLength(single))} bytes)`);
