// Measures, in the same Chromium and on the same files, when the page of web/ shows the diagnosis and when PyTorch's MemoryViz.js has drawn
// its timeline, and the largest memory of the process that did it. Each measurement has its own browser.
//
//     npm install --prefix target/browser playwright-core d3@7
//     NODE_PATH=target/browser/node_modules node conformance/browser/memory_viz.mjs MEMORY_VIZ PAGE SNAPSHOT...
//
// MEMORY_VIZ is torch/utils/viz/MemoryViz.js from PyTorch's sources, whose imports are served from d3 here, and PAGE is
// target/web/parkade.html. Snapshots are not compressed: MemoryViz.js reads no others.

import { readFileSync, readdirSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [memoryViz, page, ...snapshots] = process.argv.slice(2);
if (snapshots.length === 0) {
  console.error("usage: node conformance/browser/memory_viz.mjs MEMORY_VIZ PAGE SNAPSHOT...");
  process.exit(2);
}
const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const d3 = join(dirname(require.resolve("playwright-core/package.json")), "../d3/dist/d3.min.js");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
const PATIENCE = 300_000;

const source = readFileSync(memoryViz, "utf8").replaceAll(/^import (.*) from ["'].*["'];$/gm, (_, names) => (names.startsWith("*") ? "const d3 = window.d3;" : `const ${names} = window.d3;`));
const files = {
  "/": ["text/html", '<!doctype html><meta charset="utf-8"><script src="/d3.js"></script><script type="module" src="/MemoryViz.js"></script>'],
  "/d3.js": ["text/javascript", readFileSync(d3)],
  "/MemoryViz.js": ["text/javascript", source],
};
const server = createServer((request, response) => {
  const [type, body] = files[request.url] ?? ["text/plain", ""];
  response.writeHead(200, { "content-type": type }).end(body);
});
await new Promise((done) => server.listen(0, "localhost", done));

/** The largest memory of a renderer of this browser, in bytes. */
function peakBytes(marker) {
  const peaks = readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map((pid) => {
    try {
      const command = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      if (!command.includes("--type=renderer") || !command.includes(marker)) return 0;
      return Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) * 1024;
    } catch {
      return 0;
    }
  });
  return Math.max(...peaks);
}

/** Gives a page the file, and measures until it is done. */
async function measure(url, input, file, isDone) {
  const marker = `--user-agent=measured-${process.hrtime.bigint()}`;
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...FLAGS, marker] });
  try {
    const tab = await browser.newPage();
    await tab.goto(url);
    await tab.waitForTimeout(2000);
    const start = performance.now();
    await tab.locator(input).first().setInputFiles(file);
    await tab.waitForFunction(isDone, null, { timeout: PATIENCE, polling: 50 });
    const seconds = (performance.now() - start) / 1000;
    return `${seconds.toFixed(2)} s, ${(peakBytes(marker) / 2 ** 20).toFixed(0)} MiB`;
  } catch (error) {
    return `no result (${error.message.split("\n")[0]})`;
  } finally {
    await browser.close();
  }
}

for (const snapshot of snapshots.map((file) => resolve(file))) {
  console.log(`${basename(snapshot)}, ${(statSync(snapshot).size / 1e6).toFixed(0)} MB`);
  console.log(`  diagnosis here:         ${await measure(pathToFileURL(resolve(page)).href, "#files", snapshot, () => document.querySelector(".answer p") !== null)}`);
  console.log(`  timeline of MemoryViz:  ${await measure(`http://localhost:${server.address().port}/`, "input[type=file]", snapshot, () => document.querySelectorAll("svg polygon, svg path").length > 20)}`);
}
server.close();
