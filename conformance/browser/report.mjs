// Tests pages of `parkade report` in headless Chromium, opened from files without a network: the browser reports no error or warning;
// hovering, zooming and the slider work, in each section of a page with several; the pictures show the figures that the text states; each
// colour has a row in a legend, also where the system chooses all other colours, and a kind has the same colour there and in its table; and
// from 390 to 3840 pixels, light and dark, all text is readable and nothing is wider than the screen.
//
//     npm install --prefix target/browser playwright-core
//     NODE_PATH=target/browser/node_modules node conformance/browser/report.mjs PARKADE [OUT_FOLDER] [RECORDING...]
//
// PARKADE is the binary, for example target/release/parkade. RECORDING is a snapshot file or a finished page (.html); the default is four
// recordings of the repository, and two of them as ranks on one page. Pages and screenshots (at each width, light and dark) go to OUT_FOLDER,
// by default target/pages.
// The variable CHROMIUM names the browser if it is not /usr/bin/chromium.
//
// Exit code: 1 if a check fails, 2 if an argument is missing.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { tooWide, unexplained, unreadable, watchColours } from "./looks.mjs";

const USAGE = "usage: node conformance/browser/report.mjs PARKADE [OUT_FOLDER] [RECORDING...]";
const [binary, out = "target/pages", ...given] = process.argv.slice(2);
if (!binary || binary === "--help") {
  console.log(`${USAGE}\nTests pages of \`parkade report\` in headless Chromium; the head of the file explains it.`);
  process.exit(binary ? 0 : 2);
}
const { chromium } = createRequire(import.meta.url)("playwright-core");
const shipped = ["gpt2_varlen.limit12_oom", "gpt2_varlen.frames_tail20k", "prefetch_streams.limit6", "resnet50_sweep.default"];
const here = resolve(import.meta.dirname, "../recordings");
const recordings = given.length ? given : shipped.map((name) => join(here, `${name}.pickle.xz`));
const LARGEST_PAGE = 10 * 2 ** 20;
/** Widths of screens with the least size of text, in pixels. */
const SCREENS = [[390, 12], [768, 12], [1280, 12], [1920, 12], [3840, 17]];
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

let failures = 0;
function check(what, is) {
  console.log(`${is ? "  ok  " : "FAILED"} ${what}`);
  failures += is ? 0 : 1;
}

const limitOf = (name) => /limit(\d+)/.exec(name)?.[1];

async function settled(page) {
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** The section that is examined. A page of several files shows some beside each other. */
const EXAMINED = "section.examined";

const within = (page, name, more) => page.locator(`${EXAMINED} ${name}`, more);

/** Examines the shown section at this place from now on. */
async function choose(page, place) {
  await page.evaluate((place) => document.querySelectorAll("section:not([hidden])").forEach((section, at) => section.classList.toggle("examined", at === place)), place);
}

/** A canvas as text, to detect changes. */
const picture = (page, name) => within(page, name).evaluate((canvas) => canvas.toDataURL());

/** Opens a page and collects its errors, warnings and network requests in `complaints`. */
async function open(context, file) {
  const page = await context.newPage();
  await page.addInitScript(watchColours);
  const complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => request.url().startsWith("file:") || request.url().startsWith("blob:") || complaints.push(`asked for ${request.url()}`));
  const start = performance.now();
  await page.goto(pathToFileURL(file).href);
  await page.waitForSelector("section[data-ready=true]", { timeout: 60000 });
  await page.waitForFunction(() => [...document.querySelectorAll("section:not([hidden])")].every((section) => section.dataset.ready));
  await choose(page, 0);
  await settled(page);
  return { page, complaints, ms: Math.round(performance.now() - start) };
}

async function examine(context, file, name) {
  const { page, complaints, ms } = await open(context, file);
  console.log(`       ready after ${ms} ms, ${(statSync(file).size / 2 ** 20).toFixed(2)} MiB`);
  check("the page is below 10 MiB", statSync(file).size < LARGEST_PAGE);
  const sections = await page.locator("section:not([hidden])").count();
  for (let place = 0; place < sections; place += 1) {
    if (sections > 1) console.log(`       section ${place + 1} of ${sections}`);
    await choose(page, place);
    await examineSection(page);
  }
  await examineScreens(page, name, sections);
  await examineTicks(page);
  check(`no errors or warnings${complaints.length ? `: ${complaints.slice(0, 3).join(" | ")}` : ""}`, complaints.length === 0);
  await page.close();
}

async function examineSection(page) {
  // Below the table of ranks it is not in view.
  await within(page, "canvas.timeline").evaluate((canvas) => canvas.scrollIntoView({ block: "center" }));
  const box = await within(page, "canvas.timeline").boundingBox();
  const at = (share) => box.x + 76 + share * (box.width - 90);
  await page.mouse.move(at(0.5), box.y + box.height / 2);
  const tip = await page.locator(".tip").innerText();
  check("hovering the timeline shows exact bytes", /allocated[\s\S]*[\d,]+ bytes/.test(tip));

  // Zooming: one turn of the wheel per frame; the times between frames are measured.
  const before = await picture(page, "canvas.timeline");
  await page.evaluate(() => {
    window.frames_ms = [];
    let last = performance.now();
    const look = (now) => { window.frames_ms.push(now - last); last = now; window.looking = requestAnimationFrame(look); };
    window.looking = requestAnimationFrame(look);
  });
  await page.evaluate(async () => {
    const canvas = document.querySelector("section.examined canvas.timeline");
    const { left, width, top } = canvas.getBoundingClientRect();
    for (let i = 0; i < 90; i += 1) {
      const deltaY = i % 45 < 24 ? -70 : 70;
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, clientX: left + width / 2 + i, clientY: top + 100, bubbles: true, cancelable: true }));
      await new Promise((done) => requestAnimationFrame(done));
    }
  });
  const frames = await page.evaluate(() => { cancelAnimationFrame(window.looking); return window.frames_ms.slice(1).sort((a, b) => a - b); });
  const of = (share) => frames[Math.min(frames.length - 1, Math.floor(frames.length * share))]?.toFixed(1);
  console.log(`       zooming: ${frames.length} frames, median ${of(0.5)} ms, 95 % within ${of(0.95)} ms`);
  check("the wheel zooms", (await picture(page, "canvas.timeline")) !== before);
  await page.mouse.move(2, 2);
  await settled(page);
  const zoomed = [...await unexplained(page, "canvas.timeline", ".timeline-legend i"), ...await unexplained(page, "canvas.overview", ".timeline-legend i")];
  check(`legends explain every colour while zoomed${zoomed.length ? `: ${zoomed}` : ""}`, zoomed.length === 0);
  await page.mouse.dblclick(at(0.5), box.y + 100);
  await settled(page);

  const when = () => within(page, ".when").innerText();
  const first = await when();
  await page.mouse.click(at(0.25), box.y + box.height / 2);
  await settled(page);
  check("a click picks a moment", (await when()) !== first);
  const heap = await picture(page, "canvas.heap");
  const held = await holders(page);
  await within(page, ".slider").evaluate((slider) => { slider.value = slider.max * 0.6; slider.dispatchEvent(new Event("input")); });
  await settled(page);
  check("the slider shows another heap", (await picture(page, "canvas.heap")) !== heap);
  check("the slider shows other holders", (await holders(page)) !== held);
  const title = await within(page, ".holders-title").innerText();
  check(`the holders are those of the heap: ${title}`, title.startsWith(`${await detail(page, "allocated")} `) && title.includes(/after [\d,]+ of/.exec(await when())[0]));
  const slid = await when();
  await within(page, "canvas.timeline").press("ArrowRight");
  check("an arrow key steps to the next entry", (await when()) !== slid);

  await page.locator(EXAMINED).getByRole("button", { name: "peak reserved" }).click();
  await settled(page);
  const said = await within(page, ".fact", { hasText: "peak reserved" }).locator("dd").innerText();
  const drawn = await detail(page, "reserved");
  check(`the heap at the peak of reserved bytes has the replay's figure: ${drawn}`, drawn === said);
  await page.locator(EXAMINED).getByRole("button", { name: "peak allocated" }).click();
  const allocated = await detail(page, "allocated");
  check(`so has the heap at the peak of allocated bytes: ${allocated}`, allocated === (await within(page, ".fact", { hasText: "peak allocated" }).locator("dd").innerText()));

  const map = await within(page, "canvas.heap").boundingBox();
  await within(page, "canvas.heap").scrollIntoViewIfNeeded();
  const seen = await within(page, "canvas.heap").boundingBox();
  await page.mouse.move(seen.x + 30, seen.y + 28);
  const block = await page.locator(".tip").innerText();
  check("hovering the heap shows a block or a hole", /(in use|free|pending)[\s\S]*address\s*0x/.test(block) && map.height > 30);
  await page.mouse.move(2, 2);

  await examineTips(page);
}

/** Of several files beside each other: a tick hides and shows one of them. */
async function examineTicks(page) {
  const ticks = page.locator("[data-show]:checked");
  if ((await ticks.count()) < 2) return;
  const shown = () => page.locator("section:not([hidden])").count();
  const before = await shown();
  const tick = page.locator(`[data-show="${await ticks.last().getAttribute("data-show")}"]`);
  await tick.click();
  await settled(page);
  check("a tick less, a section less", (await shown()) === before - 1);
  await tick.click();
  await settled(page);
  check("and back", (await shown()) === before);
}

/** The table of holders as text. */
const holders = (page) => within(page, ".by-stack tbody").innerText();

/** Of a block with a stack, the first call in the tip is the user's own, if the stack has one. */
async function examineTips(page) {
  if (!(await within(page, ".colour option[value=stack]").count())) return;
  await page.locator(EXAMINED).getByRole("button", { name: "peak allocated" }).click();
  await settled(page);
  const canvas = within(page, "canvas.heap");
  await canvas.evaluate((heap) => heap.scrollIntoView({ block: "center" }));
  const box = await canvas.boundingBox();
  const size = await page.evaluate(() => innerHeight);
  let [seen, own] = [0, 0];
  for (let row = 0; row < 24; row += 1) {
    const [x, y] = [box.x + 12 + (row % 4) * 40, box.y + 28 + row * 20];
    if (y > Math.min(box.y + box.height, size) - 4 || y < 90) continue;
    await page.mouse.move(x, y);
    const calls = page.locator(".tip .call");
    if (!(await calls.count())) continue;
    const first = await calls.first().innerText();
    await page.mouse.click(x, y);
    const lines = await within(page, ".clicked .calls .own").allInnerTexts();
    seen += 1;
    if (!lines.length) continue;
    own += 1;
    if (first !== lines[0] || /-packages/.test(first)) check(`the tip begins with the user's own call, ${lines[0]}, not with ${first}`, false);
  }
  check(`${own} of ${seen} tips begin with a call of the user's own`, own > 0);
  await page.mouse.move(2, 2);
  await settled(page);
  const marked = await unexplained(page, "canvas.heap", ".key i, .holders .what i");
  check(`legends explain every colour while a block is marked${marked.length ? `: ${marked}` : ""}`, marked.length === 0);
}

/** Legends, text and widths on every screen, light and dark. */
async function examineScreens(page, name, sections) {
  for (const [width, least] of SCREENS) {
    await page.setViewportSize({ width, height: Math.max(800, Math.round(width * 0.5625)) });
    for (const theme of ["light", "dark"]) {
      if ((await page.evaluate(() => document.documentElement.dataset.theme)) !== theme) await page.locator("button.theme").click();
      await settled(page);
      const wide = await tooWide(page);
      const pale = await unreadable(page, least);
      const missing = [];
      for (let place = 0; place < sections; place += 1) {
        await choose(page, place);
        missing.push(...await unexplained(page, "canvas.timeline", ".timeline-legend i"), ...await unexplained(page, "canvas.overview", ".timeline-legend i"),
          ...await unexplained(page, "canvas.tried", ".tried-legend i, .tried-table .swatch"));
        for (const option of await within(page, ".colour option").all()) {
          await within(page, ".colour").selectOption(await option.getAttribute("value"));
          await settled(page);
          missing.push(...await unexplained(page, "canvas.heap", ".key i, .holders .what i"));
          missing.push(...await kindsUnlike(page));
        }
        await within(page, ".colour").selectOption({ index: 0 });
      }
      await settled(page);
      const list = (problems) => (problems.length ? `: ${problems.slice(0, 4).join(" | ")}` : "");
      check(`${width} pixels, ${theme}: nothing is wider${list(wide)}`, wide.length === 0);
      check(`${width} pixels, ${theme}: all text is readable${list(pale)}`, pale.length === 0);
      check(`${width} pixels, ${theme}: legends explain every colour${list(missing)}`, missing.length === 0);
      await page.screenshot({ path: join(out, `${name}.${width}.${theme}.png`), fullPage: true });
    }
  }
  const colours = () => page.locator(`${EXAMINED} .legend i`).evaluateAll((signs) => signs.map((sign) => getComputedStyle(sign).backgroundColor));
  const before = await colours();
  await page.emulateMedia({ forcedColors: "active" });
  const after = await colours();
  check("where the system chooses all colours, legends keep theirs", before.length > 0 && before.join() === after.join());
  await page.emulateMedia({ forcedColors: "none" });
}

/** Where the heap is coloured by kind: the rows of the table of kinds whose colour is not that of the legend. */
async function kindsUnlike(page) {
  if ((await within(page, ".colour").inputValue()) !== "kind") return [];
  return page.evaluate(() => {
    const section = document.querySelector("section.examined");
    const legend = new Map([...section.querySelectorAll(".key span")].map((row) => [row.textContent, row.querySelector("i").style.getPropertyValue("--c")]));
    const plain = (colour) => { const one = document.createElement("i"); one.style.color = colour; return one.style.color; };
    const rows = [...section.querySelectorAll(".by-kind tbody .what")].map((cell) => [cell.childNodes[1]?.textContent, cell.querySelector("i")?.style.background]);
    return rows.filter(([name, colour]) => !colour || plain(legend.get(name) ?? "") !== plain(colour)).map(([name]) => `the kind ${name}`);
  });
}

/** A page of two ranks, which stand beside each other. */
async function examineRanks(context) {
  console.log("two ranks");
  const folder = mkdtempSync(join(tmpdir(), "ranks-"));
  ["deep_mlp.default", "deep_mlp.expandable"].forEach((name, rank) => copyFileSync(join(here, `${name}.pickle.xz`), join(folder, `rank${rank}.pickle.xz`)));
  const file = resolve(out, "ranks.html");
  execFileSync(binary, ["report", folder, "-o", file, "--force"], { stdio: "pipe" });
  rmSync(folder, { recursive: true });
  await examine(context, file, "ranks");
}

/** A page limited to some moments: its slider stops only at those, and each shows the whole heap. */
async function examineSmall(context, recording) {
  console.log("a page limited to 164 KiB");
  const file = resolve(out, "small.html");
  execFileSync(binary, ["report", recording, "-o", file, "--force", "--page-size", "164KiB"]);
  const { page, complaints } = await open(context, file);
  const words = await within(page, ".at-moment .note").innerText();
  const count = Number(/at ([\d,]+) selected points/.exec(words)?.[1].replace(",", ""));
  check(`its note says so: ${count} moments`, count > 20);
  check("its slider has as many positions", (await within(page, ".slider").getAttribute("max")) === String(count - 1));
  for (const peak of ["reserved", "allocated"]) {
    await page.locator(EXAMINED).getByRole("button", { name: `peak ${peak}` }).click();
    await settled(page);
    const said = await within(page, ".fact", { hasText: `peak ${peak}` }).locator("dd").innerText();
    check(`the heap at the peak of ${peak} bytes is complete: ${said}`, said === (await detail(page, peak)));
  }
  const before = await within(page, ".when").innerText();
  await within(page, "canvas.timeline").press("ArrowRight");
  check("an arrow key steps to the next moment", (await within(page, ".when").innerText()) !== before);
  check(`no errors or warnings${complaints.length ? `: ${complaints.join(" | ")}` : ""}`, complaints.length === 0);
  await page.close();
}

/** The figure below the heap with this name. */
const detail = (page, name) => within(page, ".details td", { hasText: new RegExp(`^${name}$`) }).locator("xpath=following-sibling::td").innerText();

mkdirSync(out, { recursive: true });
const profile = mkdtempSync(join(tmpdir(), "chromium-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: FLAGS, offline: true, viewport: { width: 1440, height: 1000 },
});
try {
  for (const recording of recordings) {
    const name = basename(recording).replace(/\.(pickle|html).*/, "");
    console.log(name);
    const file = resolve(out, `${name}.html`);
    const limit = limitOf(name);
    const start = performance.now();
    if (!recording.endsWith(".html")) execFileSync(binary, ["report", recording, "-o", file, "--force", ...(limit ? ["--limit", `${limit}GiB`] : [])]);
    console.log(`       made in ${Math.round(performance.now() - start)} ms`);
    await examine(context, recording.endsWith(".html") ? resolve(recording) : file, name);
  }
  if (!given.length) await examineRanks(context);
  await examineSmall(context, join(here, "resnet50_sweep.default.pickle.xz"));
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log(failures ? `${failures} checks failed` : "every check passed");
process.exit(failures ? 1 : 0);
