// Tests the page that runs parkade in a browser (web/) in headless Chromium, as a folder that a server publishes and as a single file:
// every way to hand it files gives the program's answer, a command can be stopped, a second drop loses nothing and does not wait for the
// first, a worker that cannot start is a sentence, the limit is remembered, the keyboard is enough, everything has a name, and from 390 to
// 3840 pixels, light and dark, all text is readable and nothing is wider than the screen. The browser reports no error. Before the page has
// loaded, it requests only its own files, and afterwards nothing; it is also unable to.
//
//     npm install --prefix target/browser playwright-core
//     NODE_PATH=target/browser/node_modules node conformance/browser/page.mjs PARKADE [PAGE_FOLDER] [OUT_FOLDER]
//
// PARKADE is the binary, PAGE_FOLDER is what web/build.sh made (target/web), and screenshots go to OUT_FOLDER (target/pages).
// The variable CHROMIUM names the browser if it is not /usr/bin/chromium.
//
// Exit code: 1 if a check fails, 2 if an argument is missing.

import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { tooWide, unreadable } from "./looks.mjs";

const [binary, pageFolder = "target/web", out = "target/pages"] = process.argv.slice(2);
if (!binary) {
  console.error("usage: node conformance/browser/page.mjs PARKADE [PAGE_FOLDER] [OUT_FOLDER]");
  process.exit(2);
}
const { chromium } = createRequire(import.meta.url)("playwright-core");
const recordings = resolve(import.meta.dirname, "../recordings");
const folder = mkdtempSync(join(tmpdir(), "parkade-page-"));
const SCREENS = [[390, 12], [768, 12], [1280, 12], [1920, 12], [3840, 17]];
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
/** What an analysis may take here at most, in milliseconds. */
const PATIENCE = 120_000;
const OOM = "gpt2_varlen.limit12_oom.pickle.xz";
const LARGE = "gpt2_varlen.default.pickle.xz";
const MESSAGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 139.81 GiB of which 122.92 GiB is free. 16.00 GiB allowed; Process 1 has 16.88 GiB memory in use. Of the allocated memory 13.17 GiB is allocated by PyTorch, and 2.34 GiB is reserved by PyTorch but unallocated.";

let failures = 0;
function check(what, is, found = "") {
  const why = is || !String(found).length ? "" : `: ${String(found).slice(0, 400)}`;
  console.log(`${is ? "  ok  " : "FAILED"} ${what}${why}`);
  failures += is ? 0 : 1;
}

const plain = (text) => text.replaceAll(/\s+/g, " ").trim();

/** The program's answer, on files in the folder. */
function native(...args) {
  const { stdout } = spawnSync(resolve(binary), args, { cwd: folder, maxBuffer: 2 ** 30 });
  return stdout;
}

function prepare() {
  const copy = (from, to = basename(from)) => cpSync(join(recordings, from), join(folder, to));
  copy(OOM);
  copy(LARGE);
  mkdirSync(join(folder, "run"));
  ["deep_mlp.default", "deep_mlp.expandable", "deep_mlp.default"].forEach((name, rank) => copy(`${name}.pickle.xz`, `run/rank${rank}.pickle.xz`));
  ["rank0", "rank1", "rank2"].forEach((name) => cpSync(join(folder, `run/${name}.pickle.xz`), join(folder, `${name}.pickle.xz`)));
  writeFileSync(join(folder, "damaged.pickle.xz"), readFileSync(join(recordings, "resnet50_sweep.default.pickle.xz")).subarray(0, 30_000));
  writeFileSync(join(folder, "picture.png"), Buffer.from("89504e470d0a1a0a0000000d49484452", "hex"));
  writeFileSync(join(folder, "train.log"), `step 1\nstep 2\n${MESSAGE}\n`);
  for (const [name, before] of Object.entries(LOGS)) writeFileSync(join(folder, name), Buffer.from(`${before}\n${MESSAGE}\n`, "latin1"));
  writeFileSync(join(folder, "lines.log"), `${JSON.stringify({ message: "step 1" })}\n${JSON.stringify({ message: MESSAGE })}\n`);
  writeFileSync(join(folder, "run/notes.txt"), "a learning rate of 0.1");
  cpSync(join(folder, "run"), join(folder, "later"), { recursive: true });
  mkdirSync(join(folder, "logs"));
  cpSync(join(folder, "train.log"), join(folder, "logs/train.log"));
}

/** The beginnings of logs that could be taken for JSON or a pickle. */
const LOGS = { "ranks.log": "[rank0]: step 1", "times.log": "[2026-11-28 10:00:00] step 1", "shell.log": "(base) me@host$ python train.py", "latin.log": "Sch\u00f6ne Gr\u00fc\u00dfe" };

/** Publishes a folder, and notes what is requested. */
function serve(root) {
  const types = { html: "text/html", css: "text/css", js: "text/javascript", gz: "application/gzip", xz: "application/x-xz" };
  const requests = [];
  const server = createServer((request, response) => {
    requests.push(request.url);
    const name = request.url === "/" ? "index.html" : request.url.slice(1);
    try {
      const bytes = readFileSync(join(root, name));
      response.writeHead(200, { "content-type": types[name.split(".").at(-1)] }).end(bytes);
    } catch {
      response.writeHead(404).end();
    }
  });
  return new Promise((done) => server.listen(0, "localhost", () => done({ url: `http://localhost:${server.address().port}/`, requests, close: () => server.close() })));
}

/** Opens the page, and collects what the browser reports and what is requested. */
async function open(context, url) {
  const page = await context.newPage();
  const [complaints, requests] = [[], []];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => /^(blob|data):/.test(request.url()) || requests.push(request.url()));
  await page.goto(url);
  await page.waitForSelector("html[data-ready]", { timeout: 60_000 });
  return { page, complaints, requests };
}

/** Drops files on the page, as a hand does. */
const drop = (page, ...names) => dropBytes(page, names.map((name) => ({ name: basename(name), bytes: readFileSync(join(folder, name)) })));

async function dropBytes(page, given) {
  const files = given.map(({ name, bytes }) => ({ name, text: bytes.toString("base64") }));
  await page.evaluate((files) => {
    const transfer = new DataTransfer();
    for (const { name, text } of files) transfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
    const target = document.getElementById("drop");
    for (const kind of ["dragenter", "dragover", "drop"]) target.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }, files);
  return newest(page);
}

/** Drags files and folders from outside the browser, over these points of the page, and drops them at the last one. */
async function drag(page, points, ...names) {
  const session = await page.context().newCDPSession(page);
  const data = { items: [], files: names.map((name) => join(folder, name)), dragOperationsMask: 1 };
  const send = (type, [x, y]) => session.send("Input.dispatchDragEvent", { type, x, y, data });
  await send("dragEnter", points[0]);
  for (const point of points) await send("dragOver", point);
  await send("drop", points.at(-1));
  await session.detach();
  return newest(page);
}

/** The newest analysis, which stays the same when others follow. */
async function newest(page) {
  const id = await page.waitForFunction((known) => {
    const element = document.querySelector("article:not([data-known])");
    if (!element) return null;
    element.dataset.known = "true";
    return element.getAttribute("aria-labelledby");
  }).then((handle) => handle.jsonValue());
  return page.locator(`article[aria-labelledby="${id}"]`);
}

const finished = (analysis, timeout = PATIENCE) => analysis.locator(".said", { hasText: /^Done in/ }).waitFor({ timeout });
const tab = (analysis, name) => analysis.getByRole("tab", { name });
const panel = (analysis) => analysis.locator("[role=tabpanel]:not([hidden])");

/** Whether the first sentence of a tab, or of the only one, is the one with which the program's answer begins. */
async function saysTheSame(analysis, name, ...args) {
  if (name) await tab(analysis, name).click();
  const headline = plain(await panel(analysis).locator(".answer p").first().textContent());
  check(`${name ?? args.join(" ")} begins as the program does: ${headline.slice(0, 60)}`, headline.length > 10 && plain(native(...args).toString()).startsWith(headline), plain(native(...args).toString()));
}

async function isAnswered(page) {
  const analysis = await drop(page, OOM);
  const first = panel(analysis).locator(".answer p");
  await first.first().waitFor({ timeout: PATIENCE });
  check("the diagnosis is there before everything else is", !/^Done/.test(await analysis.locator(".said").innerText()));
  await finished(analysis);
  await saysTheSame(analysis, "Diagnosis", "diagnose", OOM);
  await saysTheSame(analysis, "Advice", "advise", OOM);
  await saysTheSame(analysis, "Verification", "verify", OOM);
  check("a report that is not looked at has no frame, and so no process", (await page.locator("iframe").count()) === 0);
  await tab(analysis, "Report").click();
  const frame = page.frameLocator("article[data-known] iframe").first();
  await frame.locator("section[data-ready=true]").first().waitFor({ timeout: 30_000 });
  check("the report draws itself in its frame", (await frame.locator("canvas.timeline").first().evaluate((canvas) => canvas.width)) > 100);
  const isolated = await analysis.locator("iframe").evaluate((element) => element.getAttribute("sandbox") === "allow-scripts" && element.contentDocument === null);
  check("the frame is sandboxed", isolated);
  const [download] = await Promise.all([page.waitForEvent("download"), analysis.getByRole("link", { name: /^Save the report/ }).click()]);
  const saved = readFileSync(await download.path());
  check("the saved report is the program's, to the byte", saved.equals(native("report", OOM, "-o", "-")), `${saved.length} bytes`);
  check("it has a name", download.suggestedFilename() === `${OOM}.html`, download.suggestedFilename());
  await analysis.locator("iframe").scrollIntoViewIfNeeded();
  const { x, y, width } = await analysis.locator("iframe").boundingBox();
  const over = await drag(page, [[5, y + 50], [x + width / 2, y + 50]], "rank0.pickle.xz");
  await finished(over);
  check("a file can be dropped on a report", /rank0/.test(await over.locator("h2").innerText()));
}

async function isStoppable(page) {
  const analysis = await drop(page, basename(LARGE));
  const counts = () => /: [\d,]+ of [\d,]+ \w+/.test(document.querySelector("article .said").textContent);
  check("progress is shown", await page.waitForFunction(counts, null, { timeout: PATIENCE }).then(() => true, () => false));
  await tab(analysis, "Report").click();
  await analysis.getByRole("button", { name: "Stop" }).click();
  check("a stopped analysis says so", (await analysis.locator(".said").innerText()) === "Stopped");
  for (let tries = 0; tries < 50 && page.workers().length > 0; tries += 1) await page.waitForTimeout(100);
  check("its worker has ended", page.workers().length === 0, page.workers().length);
  await analysis.getByRole("button", { name: /^Run/ }).click();
  await analysis.locator(".said", { hasText: /^(?!Stopped)/ }).waitFor();
  await analysis.getByRole("button", { name: "Stop" }).click();
  await analysis.getByRole("button", { name: /^Remove/ }).click();
  check("a removed analysis is gone", (await analysis.count()) === 0);
}

async function losesNothing(page) {
  await page.evaluate(() => {
    window.longest = 0;
    let last = performance.now();
    window.beat = setInterval(() => { const now = performance.now(); window.longest = Math.max(window.longest, now - last); last = now; }, 20);
  });
  const one = await drop(page, basename(LARGE));
  const other = await drop(page, OOM);
  await panel(other).locator(".answer p").first().waitFor({ timeout: PATIENCE });
  check("the second drop is diagnosed before the first is finished", !/^Done/.test(await one.locator(".said").innerText()));
  await Promise.all([finished(one), finished(other)]);
  await saysTheSame(one, "Diagnosis", "diagnose", basename(LARGE));
  await saysTheSame(other, "Diagnosis", "diagnose", OOM);
  const longest = await page.evaluate(() => { clearInterval(window.beat); return window.longest; });
  check(`the page was never busy for a second: ${Math.round(longest)} ms`, longest < 1000);
}

async function isTold(page) {
  for (const [name, says] of [["damaged.pickle.xz", /xz data is (cut short|damaged)/], ["picture.png", /a PNG image, not a memory snapshot/]]) {
    const analysis = await drop(page, name);
    await finished(analysis);
    check(`${name}: ${says}`, says.test(await panel(analysis).innerText()), await panel(analysis).innerText());
  }
  for (const name of [...Object.keys(LOGS), "lines.log"]) {
    const analysis = await drop(page, name);
    await finished(analysis);
    check(`${name} is a log`, (await analysis.locator("[role=tablist]").isVisible()) === false);
    await saysTheSame(analysis, null, "diagnose", name);
  }
  const log = await drop(page, "train.log");
  await finished(log);
  check("a log has no tabs for snapshots", (await log.locator("[role=tablist]").isVisible()) === false);
  const said = plain(await panel(log).locator(".answer p").first().textContent());
  check("a log is explained as the program does", plain(native("diagnose", "train.log").toString()).startsWith(said), said);
  await page.getByRole("button", { name: "Paste a log" }).click();
  await page.getByRole("textbox", { name: "Paste a log" }).fill(MESSAGE);
  await page.getByRole("button", { name: "Explain it" }).click();
  const pasted = await newest(page);
  await finished(pasted);
  check("a pasted log has the same answer", plain(await panel(pasted).locator(".answer p").first().textContent()) === said);
  await page.getByRole("button", { name: "Paste a log" }).click();
  await page.evaluate((text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    document.getElementById("log-text").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, `${"step 1\n".repeat(1_000_000)}${MESSAGE}`);
  const long = await newest(page);
  await finished(long);
  check("a long log is explained without being shown", plain(await panel(long).locator(".answer p").first().textContent()) === said);
  await page.evaluate(() => document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: new DataTransfer(), bubbles: true, cancelable: true })));
  await page.locator("#status", { hasText: /^There is no file/ }).waitFor();
}

/** What is dropped together is told apart: snapshots and logs, and folders of ranks. */
async function tellsApart(page) {
  const known = await page.locator("article").count();
  const both = await drop(page, OOM, "train.log");
  await finished(both);
  const log = await newest(page);
  await finished(log);
  check("a snapshot and a log are two analyses", (await page.locator("article").count()) === known + 2);
  await saysTheSame(both, "Advice", "advise", OOM);
  await saysTheSame(log, null, "diagnose", "train.log");
  const logs = await drag(page, [[600, 150]], "logs");
  await finished(logs);
  await saysTheSame(logs, null, "diagnose", "logs/train.log");
  const runs = await drag(page, [[600, 150]], "run", "later");
  await finished(runs);
  await saysTheSame(runs, "Difference", "diff", "run", "later");
  const remove = (analysis) => analysis.getByRole("button", { name: /^Remove/ });
  await remove(runs).click();
  check("the next analysis is in focus when one is removed", (await page.evaluate(() => document.activeElement.textContent)) === (await logs.locator("h2").textContent()));
  const strange = await dropBytes(page, [{ name: "a\u202ecod.xz", bytes: readFileSync(join(folder, "rank0.pickle.xz")) }]);
  await finished(strange);
  check("a name cannot change the direction of text", (await strange.locator("h2").innerText()) === "a\\u{202e}cod.xz", await strange.locator("h2").innerText());
}

/** A worker that cannot start, or whose module traps, is a sentence that names the program. */
async function isExcused(browser, url) {
  const start = "WebAssembly.instantiate";
  const troubles = {
    "no memory for a module": [`${start} = async () => { throw new RangeError("Out of memory"); };`, /needs more memory than a page/],
    "a trap": [`{ const real = ${start}; ${start} = async (...all) => ({ exports: { ...(await real(...all)).exports, run() { throw new WebAssembly.RuntimeError("out of bounds"); } } }); }`, /bug in parkade or in the browser/],
    "a lack of stack": [`{ const real = ${start}; ${start} = async (...all) => ({ exports: { ...(await real(...all)).exports, run: function run() { return run() + 1; } } }); }`, /bug in parkade or in the browser/],
    "a browser that reads no files": ["self.FileReaderSync = undefined;", /bug in parkade or in the browser/],
  };
  for (const [name, [code, says]] of Object.entries(troubles)) {
    const context = await browser.newContext();
    await context.addInitScript((code) => {
      window.Blob = class extends Blob {
        constructor(parts, options) { super(options?.type === "text/javascript" ? [code, ...parts] : parts, options); }
      };
    }, code);
    const { page, complaints } = await open(context, url);
    const analysis = await drop(page, OOM);
    const isDone = await finished(analysis, 20_000).then(() => true, () => false);
    const said = await panel(analysis).innerText();
    check(`${name} is excused`, isDone && says.test(said) && said.includes(`parkade diagnose ${OOM}`) && complaints.length === 0, `${said} ${complaints}`);
    await context.close();
  }
}

/** The folder's page says what to open instead when it is opened from a disk, where a browser does not run its script. */
async function saysWhatToOpen(browser) {
  const page = await browser.newPage();
  await page.goto(pathToFileURL(resolve(pageFolder, "site/index.html")).href);
  check("from a disk, the folder's page names the single file", await page.getByText(/open parkade\.html/).waitFor({ timeout: 10_000 }).then(() => true, () => false));
  await page.close();
}

async function comparesRanks(page) {
  const ranks = await drop(page, "rank0.pickle.xz", "rank1.pickle.xz", "rank2.pickle.xz");
  await finished(ranks);
  const all = ["rank0.pickle.xz", "rank1.pickle.xz", "rank2.pickle.xz"];
  await saysTheSame(ranks, "Diagnosis", "diagnose", ...all);
  await saysTheSame(ranks, "Verification", "verify", ...all);
  await tab(ranks, "Report").click();
  await ranks.locator("iframe").contentFrame().locator("section[data-ready=true]").first().waitFor({ timeout: 30_000 });
  await page.locator("#folder").setInputFiles(join(folder, "run"));
  const run = await newest(page);
  await finished(run);
  await saysTheSame(run, "Verification", "verify", "run");
  const two = await drop(page, "rank0.pickle.xz", "rank1.pickle.xz");
  await finished(two);
  await saysTheSame(two, "Difference", "diff", "rank0.pickle.xz", "rank1.pickle.xz");
}

async function hasLimit(page) {
  await page.getByLabel("Memory limit of the run").selectOption("a different size");
  await page.getByRole("textbox", { name: /^Memory limit, such as/ }).fill("12.5 GiB");
  await page.keyboard.press("Tab");
  const analysis = await drop(page, OOM);
  await finished(analysis);
  await saysTheSame(analysis, "Advice", "advise", OOM, "--limit", "12.5GiB");
  await page.reload();
  await page.waitForSelector("html[data-ready]");
  check("the limit is remembered", (await page.getByRole("textbox", { name: /^Memory limit, such as/ }).inputValue()) === "12.5GiB");
  await page.getByLabel("Memory limit of the run").selectOption("");
}

async function worksByKeyboard(page) {
  await page.evaluate(() => document.activeElement?.blur());
  const names = [];
  for (let presses = 0; presses < 7; presses += 1) {
    await page.keyboard.press("Tab");
    names.push(await page.evaluate(() => document.activeElement.id));
  }
  check("the keyboard reaches everything in order", names.slice(0, 5).join() === "choose,choose-folder,paste,example,limit", names);
  await page.locator("#example").focus();
  await page.keyboard.press("Enter");
  const analysis = await newest(page);
  await finished(analysis);
  check("the example is answered for its limit", /16\.00 GiB/.test(await analysis.locator(".diagnose").textContent()));
  await tab(analysis, "Diagnosis").focus();
  await page.keyboard.press("ArrowRight");
  check("arrow keys change tabs", (await tab(analysis, "Advice").getAttribute("aria-selected")) === "true" && (await panel(analysis).isVisible()));
  await page.keyboard.press("End");
  check("End goes to the last tab", (await tab(analysis, "Verification").getAttribute("aria-selected")) === "true");
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, a, select, input:not([type=file]), textarea, iframe, progress, [role=tab], article, dialog")]
    .filter((element) => !(element.innerText?.trim() && /^(BUTTON|A)$/.test(element.tagName)) && !element.ariaLabel && !element.title && !element.labels?.length && !document.getElementById(element.getAttribute("aria-labelledby"))?.textContent.trim())
    .map((element) => element.outerHTML.slice(0, 80)));
  check("everything has a name for a screen reader", nameless.length === 0, nameless.join(" | "));
}

/** Runs in the page: fields and buttons whose edge has a contrast below 3 to what is around them, as WCAG 2 asks for. */
function faintFields() {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const around = luminance(getComputedStyle(document.getElementById("drop")).backgroundColor);
  const contrast = (colour) => (Math.max(luminance(colour), around) + 0.05) / (Math.min(luminance(colour), around) + 0.05);
  return [...document.querySelectorAll("#drop button, #drop select, #other, textarea, .progress button")].map((field) => `${field.id} ${contrast(getComputedStyle(field).borderBottomColor).toFixed(2)}`)
    .filter((found) => Number(found.split(" ")[1]) < 3);
}

async function looksRight(page, name) {
  const analysis = await drop(page, OOM);
  await finished(analysis);
  for (const [width, least] of SCREENS) {
    await page.setViewportSize({ width, height: Math.round(width * 0.625) + 200 });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      const at = `${width} pixels, ${colorScheme}`;
      for (const title of ["Diagnosis", "Advice", "Report"]) {
        await tab(analysis, title).click();
        const [wide, pale] = [await tooWide(page), await unreadable(page, least)];
        check(`${title} at ${at}: nothing is too wide`, wide.length === 0, wide.join(" | "));
        check(`${title} at ${at}: all text is readable`, pale.length === 0, pale.join(" | "));
        await page.screenshot({ path: join(out, `${name}-${width}-${colorScheme}-${title}.png`), fullPage: true });
      }
      const frame = await analysis.locator("iframe").contentFrame().locator("body").evaluate((body) => devicePixelRatio * parseFloat(getComputedStyle(body).fontSize));
      const text = await page.evaluate(() => devicePixelRatio * parseFloat(getComputedStyle(document.body).fontSize));
      check(`at ${at}, the text of the report is as large as the page's: ${frame.toFixed(1)} and ${text.toFixed(1)} pixels`, frame > 0.9 * text);
      const faint = await page.evaluate(faintFields);
      check(`at ${at}, every field and button has an edge that can be seen`, faint.length === 0, faint.join(" | "));
    }
  }
  await page.emulateMedia({ colorScheme: "light", forcedColors: "active" });
  const edges = await analysis.getByRole("tab").evaluateAll((tabs) => tabs.map((tab) => getComputedStyle(tab).borderBottomColor));
  check("where the system chooses all colours, the chosen tab differs", new Set(edges).size === 2, edges.join());
  await page.emulateMedia({ forcedColors: "none" });
  await analysis.getByRole("button", { name: /^Remove/ }).click();
  await page.screenshot({ path: join(out, `${name}-empty.png`), fullPage: true });
  await page.setViewportSize({ width: 1280, height: 900 });
}

/** Neither the page nor a worker or a frame that it makes can request anything, even if it wants to. */
async function cannotSend(page, elsewhere) {
  const outcomes = await page.evaluate(async (url) => {
    const outcome = (promise) => promise.then(() => "sent", () => "refused");
    const source = `fetch(${JSON.stringify(url)}, { mode: "no-cors" }).then(() => postMessage("sent"), () => postMessage("refused"))`;
    const worker = new Worker(URL.createObjectURL(new Blob([source])));
    const ofWorker = new Promise((done) => { worker.onmessage = ({ data }) => done(data); worker.onerror = () => done("refused"); });
    const image = new Promise((done, fail) => Object.assign(new Image(), { onload: done, onerror: fail, src: url }));
    return [await outcome(fetch(url, { mode: "no-cors" })), await ofWorker, await outcome(image), navigator.sendBeacon(url) && "beacon"];
  }, elsewhere.url);
  await page.waitForTimeout(300);
  check("requests of the page, a worker and an image are refused", outcomes.slice(0, 3).every((outcome) => outcome === "refused"), outcomes);
  check("nothing arrived", elsewhere.requests.length === 0, elsewhere.requests.join());
}

async function examine(browser, name, url, allowed) {
  console.log(`${name}: ${url}`);
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true });
  const { page, complaints, requests } = await open(context, url);
  check("it requests only its own files", requests.every(allowed), requests.filter((request) => !allowed(request)).join());
  const before = requests.length;
  await context.setOffline(true);
  await isAnswered(page);
  await isTold(page);
  await tellsApart(page);
  await comparesRanks(page);
  await isStoppable(page);
  await losesNothing(page);
  check("nothing is requested after loading", requests.length === before, requests.slice(before).join());
  await context.setOffline(false);
  await hasLimit(page);
  await worksByKeyboard(page);
  await looksRight(page, name);
  await isExcused(browser, url);
  check("no errors or warnings", complaints.length === 0, complaints.slice(0, 3).join(" | "));
  const elsewhere = await serve(folder);
  await cannotSend(page, elsewhere);
  elsewhere.close();
  await context.close();
}

prepare();
mkdirSync(out, { recursive: true });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
const server = await serve(join(pageFolder, "site"));
try {
  await examine(browser, "folder", server.url, (request) => request.startsWith(server.url));
  const known = ["/", "/page.js", "/style.css", "/parkade.wasm.gz", "/worker.js", "/example.pickle.xz"];
  check("the server was asked for the page's files only", server.requests.every((request) => known.includes(request)), server.requests.join());
  const single = pathToFileURL(resolve(pageFolder, "parkade.html")).href;
  await examine(browser, "single", single, (request) => request === single);
  await saysWhatToOpen(browser);
} finally {
  await browser.close();
  server.close();
  rmSync(folder, { recursive: true });
}
console.log(failures ? `${failures} checks failed` : "all checks passed");
process.exit(failures ? 1 : 0);
