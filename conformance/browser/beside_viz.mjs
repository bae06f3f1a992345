// Compares the page of web/ with PyTorch's MemoryViz.js in the same Chromium on the same files: the time from handing over the file until
// the diagnosis is shown, or until the timeline is drawn, and the largest memory of the process that did it. For a finished report, it
// measures the time that scripts take per frame while the timeline is zoomed and panned.
//
//     npm install --prefix target/browser playwright-core d3@7
//     NODE_PATH=target/browser/node_modules node conformance/browser/beside_viz.mjs MEMORY_VIZ PAGE FILE...
//
// MEMORY_VIZ is MemoryViz.js (torch/utils/viz in PyTorch's sources); its imports from d3 are served from the local package, and other files
// that it imports are read from its folder. PAGE is target/web/parkade.html. A FILE that ends in .html is a page of `parkade report`; any
// other is a snapshot, not compressed, because MemoryViz.js reads no others. `larger.py` writes large ones.
//
// Each measurement of a snapshot has its own browser. The two pages take turns, ROUNDS times, so that other work on the machine slows both;
// medians are printed. In the last round, the page of web/ finishes its other commands too; its largest memory and its processor time by
// then are printed.
// Exit code: 1 if a goal is missed, 2 if an argument is missing. The variable CHROMIUM names the browser if it is not /usr/bin/chromium.

import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [memoryViz, page, ...given] = process.argv.slice(2);
if (given.length === 0) {
  console.error("usage: node conformance/browser/beside_viz.mjs MEMORY_VIZ PAGE FILE...");
  process.exit(2);
}
const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const d3 = join(dirname(require.resolve("playwright-core/package.json")), "../d3/dist/d3.min.js");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
const PATIENCE = 600_000;
const ROUNDS = 3;
/** Linux counts processor time in hundredths of a second. */
const TICKS = 100;
/** The most milliseconds of script in a frame. */
const GOAL_MS = 8;
/** How many events each way to zoom or pan consists of. */
const STEPS = 120;
/** The trace's names of everything that runs scripts. */
const SCRIPTS = ["EventDispatch", "FireAnimationFrame", "FunctionCall", "TimerFire", "RunMicrotasks"];

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

const launch = (...flags) => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...FLAGS, ...flags] });

/** Publishes MemoryViz.js on a page without anything else. */
async function serve() {
  const isOfD3 = /^import (.*) from ["'][^"']*\bd3\b[^"']*["'];$/gm;
  const source = readFileSync(memoryViz, "utf8").replaceAll(isOfD3, (_, names) => `const ${names.startsWith("*") ? "d3" : names} = window.d3;`);
  const files = {
    "/": ["text/html", '<!doctype html><meta charset="utf-8"><script src="/d3.js"></script><script type="module" src="/MemoryViz.js"></script>'],
    "/d3.js": ["text/javascript", readFileSync(d3)],
    "/MemoryViz.js": ["text/javascript", source],
  };
  const server = createServer(({ url }, response) => {
    const beside = join(dirname(memoryViz), basename(url));
    const [type, body] = files[url] ?? (existsSync(beside) ? ["text/javascript", readFileSync(beside)] : ["text/plain", ""]);
    response.writeHead(200, { "content-type": type }).end(body);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return server;
}

/**
 * Returns what the renderers of the browser with this flag have used: the largest memory of one of them in MiB, and the processor time of
 * all in seconds. Workers belong to their page's renderer.
 */
function used(marker) {
  const found = readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map((pid) => {
    try {
      const [command, status, stat] = ["cmdline", "status", "stat"].map((name) => readFileSync(`/proc/${pid}/${name}`, "utf8"));
      if (!command.includes("--type=renderer") || !command.includes(marker)) return { mib: 0, cpu: 0 };
      const [user, system] = stat.split(") ")[1].split(" ").slice(11, 13).map(Number);
      return { mib: Number(/VmHWM:\s+(\d+) kB/.exec(status)[1]) / 1024, cpu: (user + system) / TICKS };
    } catch {
      return { mib: 0, cpu: 0 };
    }
  });
  return { mib: Math.max(...found.map(({ mib }) => mib)), cpu: found.reduce((sum, { cpu }) => sum + cpu, 0) };
}

/** Runs in the page: notes when it gets a file, and when the first frame after `isDone` is shown. */
function watch(isDone) {
  const times = window.measured = {};
  addEventListener("change", () => { times.start ??= performance.now(); }, true);
  const observer = new MutationObserver(() => {
    if (times.start === undefined || !isDone()) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { times.end = performance.now(); }));
  });
  observer.observe(document.documentElement, { childList: true, subtree: true });
}

const isDiagnosed = () => document.querySelector(".diagnose .answer p") !== null;
const isDrawn = () => document.querySelectorAll("svg polygon, svg path").length > 20;
const isFinished = () => document.querySelector(".said")?.textContent.startsWith("Done in");

/** Hands the file to a page in a new browser. `whenFinished` is waited for after the measurement. */
async function measure(url, input, file, isDone, whenFinished) {
  const marker = `--user-agent=measured-${process.hrtime.bigint()}`;
  const browser = await launch(marker);
  try {
    const tab = await browser.newPage();
    await tab.goto(url);
    await tab.waitForTimeout(2000);
    await tab.evaluate(`(${watch})(${isDone})`);
    const before = used(marker).cpu;
    await tab.locator(input).first().setInputFiles(file);
    await tab.waitForFunction(() => window.measured.end !== undefined, null, { timeout: PATIENCE, polling: 50 });
    const seconds = await tab.evaluate(() => (window.measured.end - window.measured.start) / 1000);
    const { mib } = used(marker);
    if (!whenFinished) return { seconds, mib };
    await tab.waitForFunction(whenFinished, null, { timeout: PATIENCE, polling: 500 });
    const finished = used(marker);
    return { seconds, mib, finished: `${finished.mib.toFixed(0)} MiB, ${(finished.cpu - before).toFixed(1)} s of processor time` };
  } finally {
    await browser.close();
  }
}

/** Compares both pages on a snapshot. Returns whether the diagnosis is no later than the timeline and needs no more memory. */
async function compare(snapshot, url) {
  const [here, there] = [[], []];
  for (let round = 1; round <= ROUNDS; round += 1) {
    here.push(await measure(pathToFileURL(resolve(page)).href, "#files", snapshot, isDiagnosed, round === ROUNDS ? isFinished : null));
    there.push(await measure(url, "input[type=file]", snapshot, isDrawn));
  }
  const of = (runs, key) => median(runs.map((run) => run[key]));
  const said = (runs) => `${of(runs, "seconds").toFixed(2)} s, ${of(runs, "mib").toFixed(0)} MiB (${runs.map(({ seconds }) => seconds.toFixed(2)).join(", ")} s)`;
  console.log(`${basename(snapshot)}, ${(statSync(snapshot).size / 1e6).toFixed(0)} MB`);
  console.log(`  diagnosis of the page:     ${said(here)}; all commands: ${here.at(-1).finished}`);
  console.log(`  timeline of MemoryViz.js:  ${said(there)}`);
  return of(here, "seconds") <= of(there, "seconds") && of(here, "mib") <= of(there, "mib");
}

/** Collects a trace while `act` runs, and returns the processor time and the wall time of scripts in each frame, in milliseconds. */
async function scriptOf(browser, tab, act) {
  await browser.startTracing(tab, { categories: ["devtools.timeline", "disabled-by-default-devtools.timeline"] });
  await act();
  const { traceEvents } = JSON.parse(await browser.stopTracing());
  // Only the thread of the report draws.
  const { pid, tid } = traceEvents.find(({ name }) => name === "FireAnimationFrame") ?? {};
  const isScript = (event) => event.pid === pid && event.tid === tid && event.ph === "X" && SCRIPTS.includes(event.name);
  const frames = [];
  let [cpu, wall, until] = [0, 0, 0];
  for (const event of traceEvents.filter(isScript).sort((a, b) => a.ts - b.ts || b.dur - a.dur)) {
    // An event includes those inside it.
    if (event.ts < until) continue;
    until = event.ts + event.dur;
    cpu += event.tdur / 1000;
    wall += event.dur / 1000;
    // A frame begins with the input since the last one and ends with its drawing.
    if (event.name !== "FireAnimationFrame") continue;
    frames.push({ cpu, wall });
    [cpu, wall] = [0, 0];
  }
  if (frames.length < STEPS / 2) throw new Error(`only ${frames.length} frames were drawn for ${STEPS} events`);
  return frames;
}

/** Zooms and pans a report as a hand does. Returns whether the scripts reach the goal. */
async function react(file) {
  const browser = await launch();
  const tab = await browser.newPage({ viewport: { width: 1440, height: 1000 } });
  await tab.goto(pathToFileURL(resolve(file)).href);
  await tab.waitForSelector("section[data-ready=true]", { timeout: PATIENCE });
  await tab.locator("canvas.timeline").first().evaluate((canvas) => canvas.scrollIntoView({ block: "center" }));
  const [graph, strip] = [await tab.locator("canvas.timeline").first().boundingBox(), await tab.locator("canvas.overview").first().boundingBox()];
  const entries = await tab.locator(".when").first().innerText();
  console.log(`${basename(file)}: ${/of ([\d,]+) entries/.exec(entries)[1]} entries`);
  const across = (box, share) => [box.x + 76 + share * (box.width - 90), box.y + box.height / 2];
  const steps = Array.from({ length: STEPS }, (_, step) => step);
  const acts = {
    "zooming with the wheel": async () => {
      for (const step of steps) {
        await tab.mouse.move(...across(graph, 0.3 + step / 300));
        await tab.mouse.wheel(0, step % 60 < 30 ? -120 : 120);
      }
    },
    "panning with the wheel": async () => { for (const step of steps) await tab.mouse.wheel(step % 60 < 30 ? 90 : -90, 0); },
    "panning in the overview": async () => {
      await tab.mouse.move(...across(strip, 0.1));
      await tab.mouse.down();
      for (const step of steps) await tab.mouse.move(...across(strip, 0.1 + step / 150));
      await tab.mouse.up();
    },
  };
  let isReached = true;
  for (const [name, act] of Object.entries(acts)) {
    if (name === "panning with the wheel") for (let turn = 0; turn < 4; turn += 1) await tab.mouse.wheel(0, -240);
    const frames = await scriptOf(browser, tab, act);
    const most = (key, share) => frames.map((frame) => frame[key]).sort((a, b) => a - b)[Math.ceil(frames.length * share) - 1];
    const said = (key) => `median ${most(key, 0.5).toFixed(1)} ms, 99 % within ${most(key, 0.99).toFixed(1)} ms, longest ${most(key, 1).toFixed(1)} ms`;
    console.log(`  ${name}, ${frames.length} frames: processor time of scripts ${said("cpu")}; wall time ${said("wall")}`);
    isReached &&= most("cpu", 1) <= GOAL_MS;
  }
  await browser.close();
  return isReached;
}

const server = await serve();
const url = `http://localhost:${server.address().port}/`;
let isReached = true;
for (const file of given.map((name) => resolve(name))) isReached = (file.endsWith(".html") ? await react(file) : await compare(file, url)) && isReached;
server.close();
process.exit(isReached ? 0 : 1);
