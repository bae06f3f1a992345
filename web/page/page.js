// The page: files are dropped, chosen or pasted; each drop becomes an analysis with a tab for each command. A command runs in its own
// worker, so that the page never waits, and so that stopping it is ending the worker.

const $ = (id) => document.getElementById(id);
const encoded = new TextEncoder();

/** What each tab runs. `isShown` says which drops have the tab. */
const TABS = [
  { name: "diff", title: "Difference", isShown: ({ paths, isLog }) => paths.length === 2 && !isLog, args: ({ paths }) => ["diff", ...paths] },
  { name: "diagnose", title: "Diagnosis", isShown: () => true, args: ({ paths, isLog }, limit) => ["diagnose", ...paths, ...(isLog ? [] : limit)] },
  { name: "advise", title: "Advice", isShown: ({ isLog }) => !isLog, args: ({ paths }, limit) => ["advise", ...paths, ...limit] },
  { name: "report", title: "Report", isShown: ({ isLog }) => !isLog, args: ({ paths }, limit) => ["report", ...paths, ...limit, "-o", "-"] },
  { name: "verify", title: "Verification", isShown: ({ isLog }) => !isLog, args: ({ paths }, limit) => ["verify", ...paths, ...limit] },
];
const DOING = { diff: "Comparing", diagnose: "Diagnosing", advise: "Trying other settings", report: "Drawing the report", verify: "Verifying" };

/** Returns an element with these properties and children. */
function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && key !== "role") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const size = (bytes) => {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const at = Math.min(3, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${(bytes / 1024 ** at).toFixed(at ? 1 : 0)} ${units[at]}`;
};

/** A name as the program shows it: characters that cannot be seen, or that change the direction of the text, as escapes. */
const shown = (name) => name.replaceAll(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (character) => `\\u{${character.charCodeAt(0).toString(16)}}`);

// ---- What the page consists of: inside this file, or next to it.

const inlined = (name) => $(`asset-${name}`)?.textContent.trim();
const ofBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

async function bytesOf(name) {
  const text = inlined(name);
  if (text !== undefined) return ofBase64(text);
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: the server answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function unzipped(bytes) {
  // A server may have said that the file is compressed, and then the browser has unpacked it already.
  if (bytes[0] !== 0x1f) return bytes;
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

/** Loads everything that the page will ever need. */
async function load() {
  const [packed, script, example] = await Promise.all([bytesOf("parkade.wasm.gz"), bytesOf("worker.js"), bytesOf("example.pickle.xz")]);
  const module = await WebAssembly.compile(await unzipped(packed));
  // From here on, neither the page nor a worker or a frame that it makes may request anything.
  document.head.append(make("meta", { httpEquiv: "Content-Security-Policy", content: "connect-src 'none'; img-src data: blob:" }));
  return { module, worker: URL.createObjectURL(new Blob([script], { type: "text/javascript" })), example };
}

const loaded = load();
loaded.catch((error) => tell(`The page could not be loaded: ${error.message}. Reload it; if it still fails, your browser may be too old.`, true));

function tell(text, isProblem = false) {
  $("status").textContent = text;
  $("status").className = isProblem ? "problem" : "unseen";
}

// ---- The memory limit, which is remembered.

const STORED = "parkade-limit";

function limit() {
  const value = $("limit").value === "other" ? $("other").value.trim() : $("limit").value;
  return value.replaceAll(/\s/g, "");
}

function remember() {
  $("other").hidden = $("limit").value !== "other";
  try {
    localStorage.setItem(STORED, limit());
  } catch {
    // The browser keeps nothing for this page.
  }
  for (const analysis of analyses) analysis.offerLimit();
}

function recall() {
  let stored = "";
  try {
    stored = localStorage.getItem(STORED) ?? "";
  } catch {
    return;
  }
  const isListed = [...$("limit").options].some((option) => option.value === stored);
  $("limit").value = isListed ? stored : "other";
  if (!isListed) $("other").value = stored;
  $("other").hidden = isListed;
}

// ---- Analyses.

/** All that are shown, newest first. */
let analyses = [];
/** How many commands run at the same time. */
const MOST = (navigator.hardwareConcurrency ?? 2) > 2 ? 2 : 1;

/** Starts what can be started: analyses without an answer first, and of these the oldest. */
function schedule() {
  const running = () => analyses.filter((analysis) => analysis.running).length;
  for (const analysis of [...analyses].reverse().sort((a, b) => a.isAnswered() - b.isAnswered())) {
    if (running() >= MOST) return;
    if (!analysis.running) analysis.next();
  }
}

/** One drop: its files, and a tab for each command. */
class Analysis {
  constructor(drop) {
    this.drop = drop;
    this.limit = drop.limit ?? limit();
    this.tabs = TABS.filter((tab) => tab.isShown(drop)).map((tab) => ({ ...tab, state: "waiting" }));
    this.running = null;
    this.build();
    this.choose(this.tabs[0]);
  }

  build() {
    const id = `analysis-${Analysis.count = (Analysis.count ?? 0) + 1}`;
    this.title = make("h2", { id, tabIndex: -1 }, this.drop.title);
    this.said = make("span", { className: "said" });
    this.bar = make("progress", { "aria-label": `Progress of ${this.drop.title}` });
    this.stopButton = make("button", { type: "button", onclick: () => this.stop() }, "Stop");
    this.again = make("button", { type: "button", hidden: true, onclick: () => this.restart() });
    const remove = make("button", { type: "button", className: "quiet", "aria-label": `Remove ${this.drop.title}`, title: "Remove", onclick: () => this.remove() }, "×");
    const list = make("div", { className: "tabs", role: "tablist", "aria-labelledby": id, onkeydown: (event) => this.move(event) });
    this.element = make("article", { "aria-labelledby": id },
      make("div", { className: "head" }, make("div", {}, this.title, make("p", { className: "hint" }, this.drop.details)), remove),
      make("div", { className: "progress" }, this.bar, this.said, this.stopButton, this.again), list);
    for (const tab of this.tabs) {
      const [of, panel] = [`${id}-${tab.name}`, `${id}-${tab.name}-panel`];
      tab.button = make("button", { type: "button", role: "tab", id: of, "aria-controls": panel, onclick: () => this.choose(tab) }, tab.title);
      tab.panel = make("div", { role: "tabpanel", id: panel, "aria-labelledby": of, tabIndex: 0, className: `panel ${tab.name}` });
      list.append(tab.button);
      this.element.append(tab.panel);
      this.show(tab);
    }
    list.hidden = this.tabs.length === 1;
  }

  /** Shows a tab. If it waits, it is next. */
  choose(tab) {
    this.chosen = tab;
    for (const other of this.tabs) {
      other.button.setAttribute("aria-selected", other === tab);
      other.button.tabIndex = other === tab ? 0 : -1;
      other.panel.hidden = other !== tab;
    }
    this.frame(tab);
  }

  /** Whether its first command has ended. */
  isAnswered() {
    return ["done", "stopped"].includes(this.tabs[0].state);
  }

  /** Arrow keys move between tabs, as the pattern for tabs has it. */
  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? this.tabs.length - 1 : step && (this.tabs.indexOf(this.chosen) + step + this.tabs.length) % this.tabs.length;
    if (to === undefined) return;
    event.preventDefault();
    this.choose(this.tabs[to]);
    this.chosen.button.focus();
  }

  /** Runs the next command that waits, first the one whose tab is shown. */
  next() {
    const waiting = this.tabs.filter((tab) => tab.state === "waiting");
    const tab = waiting.find((tab) => tab === this.chosen) ?? waiting[0];
    if (tab) this.run(tab);
    this.showProgress();
  }

  async run(tab) {
    this.running = tab;
    this.set(tab, "running");
    const parts = await loaded.catch(() => null);
    if (this.running !== tab) return;
    if (!parts) return this.finish(tab, { output: new Uint8Array(), error: "The page is incomplete: reload it." });
    const { module, worker: script } = parts;
    const args = tab.args(this.drop, this.limit ? ["--limit", this.limit] : []);
    this.worker = new Worker(script, { name: tab.name });
    this.worker.onmessage = ({ data: { progress, answer } }) => (answer ? this.finish(tab, answer) : this.showProgress(progress));
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.finish(tab, { output: new Uint8Array(), error: `The browser ended the work: ${event.message || "it gave no reason"}.` });
    };
    this.worker.postMessage({ module, files: this.drop.files, args, isHtml: tab.name !== "report" });
  }

  finish(tab, answer) {
    this.end();
    tab.answer = answer;
    this.set(tab, "done");
    if (this.tabs.every(({ state }) => state === "done")) tell(`${this.drop.title}: all answers are ready.`);
    else if (tab === this.tabs[0]) tell(`${this.drop.title}: the first answer is ready.`);
    schedule();
    this.showProgress();
  }

  end() {
    this.worker?.terminate();
    [this.worker, this.running] = [null, null];
  }

  stop() {
    this.end();
    for (const tab of this.tabs) if (tab.state !== "done") this.set(tab, "stopped");
    tell(`${this.drop.title}: stopped.`);
    this.showProgress();
    this.title.focus({ preventScroll: true });
    schedule();
  }

  /** Runs everything again, with the limit that is now chosen. */
  restart() {
    this.end();
    this.limit = this.drop.limit ?? limit();
    for (const tab of this.tabs) this.set(tab, "waiting");
    schedule();
    this.showProgress();
  }

  remove() {
    this.end();
    for (const tab of this.tabs) this.forget(tab);
    const at = analyses.indexOf(this);
    analyses = analyses.filter((other) => other !== this);
    this.element.remove();
    $("how").hidden = analyses.length > 0;
    const next = analyses[Math.min(at, analyses.length - 1)];
    if (next) next.title.focus({ preventScroll: true });
    else $("choose").focus();
    schedule();
  }

  /** Lets go of a tab's report. */
  forget(tab) {
    if (tab.url) URL.revokeObjectURL(tab.url);
    tab.url = null;
  }

  set(tab, state) {
    tab.state = state;
    this.show(tab);
    this.offerLimit();
  }

  offerLimit() {
    const isNew = limit() !== this.limit && !this.drop.isLog && this.drop.limit === undefined;
    const isStopped = this.tabs.some((tab) => tab.state === "stopped");
    this.again.hidden = !isNew && !isStopped;
    this.again.textContent = !isNew ? "Run" : limit() ? `Run with a limit of ${limit()}` : "Run with the file’s limit";
  }

  showProgress(progress) {
    const tab = this.running;
    const isWaiting = this.tabs.some((tab) => tab.state === "waiting");
    this.bar.hidden = !tab;
    this.stopButton.hidden = !tab && !isWaiting;
    if (progress && progress.total > 0) [this.bar.max, this.bar.value] = [progress.total, progress.done];
    else this.bar.removeAttribute("value");
    const count = progress && progress.total > 0 ? `: ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")} ${progress.unit}` : "";
    const seconds = this.tabs.reduce((sum, tab) => sum + (tab.answer?.seconds ?? 0), 0);
    const isStopped = this.tabs.some((tab) => tab.state === "stopped");
    this.said.textContent = tab ? `${DOING[tab.name]}${count}` : isWaiting ? "Waiting for another analysis" : isStopped ? "Stopped" : `Done in ${seconds.toFixed(1)} s`;
    for (const { button, state } of this.tabs) {
      button.classList.toggle("unfinished", state !== "done");
      button.setAttribute("aria-description", state === "done" ? "" : state);
    }
  }

  show(tab) {
    this.forget(tab);
    const words = { waiting: "Waiting for the command before this one.", running: `${DOING[tab.name]} …`, stopped: "Stopped before the end." }[tab.state];
    if (words) {
      tab.panel.replaceChildren(make("p", { className: "hint" }, words));
      return;
    }
    const { answer } = tab;
    const remarks = answer.error.split("\n").filter(Boolean).map((line) => make("p", { className: answer.output.length ? "remark" : "problem" }, line.replace(/^parkade: /, "")));
    if (tab.name === "report" && answer.output.length) {
      tab.panel.replaceChildren(...remarks, this.report(tab));
      this.frame(tab);
    } else {
      const found = make("div", { className: "answer" });
      // The module escapes what it took from the files, and the page's policy runs no script that is not its own.
      found.innerHTML = new TextDecoder().decode(answer.output);
      for (const line of found.querySelectorAll("pre")) line.tabIndex = 0;
      const names = found.textContent.includes("--limit") || answer.error.includes("--limit");
      const hint = names ? make("p", { className: "remark" }, "On this page, --limit is “Memory limit of the run”, above.") : null;
      tab.panel.replaceChildren(...[found, ...remarks, hint].filter(Boolean));
    }
  }

  /** Keeps a finished report, and returns what can be done with it. */
  report(tab) {
    const page = new Blob([tab.answer.output], { type: "text/html" });
    tab.url = URL.createObjectURL(page);
    const name = `${this.drop.title.replaceAll(/[^\p{L}\p{N}_.-]+/gu, "_").replace(/^\.+/, "_").slice(0, 200)}.html`;
    const enlarge = () => attempt(tab.panel.querySelector("iframe").requestFullscreen(), "The report cannot fill the screen");
    return make("div", { className: "buttons" },
      make("a", { className: "button main", href: tab.url, download: name }, `Save the report (${size(page.size)})`),
      document.fullscreenEnabled ? make("button", { type: "button", onclick: enlarge }, "Full screen") : null,
      make("span", { className: "hint" }, "It is a single file that opens in any browser."));
  }

  /** Shows a finished report in a frame that can reach nothing, once its tab is chosen: a frame takes a process of 130 MiB. */
  frame(tab) {
    if (tab !== this.chosen || !tab.url || tab.panel.querySelector("iframe")) return;
    tab.panel.append(make("iframe", { src: tab.url, title: `Report about ${this.drop.title}`, sandbox: "allow-scripts", allow: "fullscreen" }));
  }
}

// ---- Drops.

/** A path as the command line takes it: in one line, and not an option. */
const pathOf = (name) => name.replaceAll(/[\u0000-\u001f\u007f]/g, "_").replace(/^(?=-)/, "./");

/** The beginning of a snapshot in a form that is text: a web page, JSON, or a pickle of protocol 0. */
const TEXT_FORM = /^(<(!doctype|!--|html|head|script|\?xml)|\{\s*["}]|\{$|\[\s*[\[{\]]|\[$|\([dl](p\d|[SV]))/i;

/** Whether a file is text, such as a log, by the rule of the program. The lines of a log may be JSON objects. */
async function isText(blob) {
  const head = new Uint8Array(await blob.slice(0, 512).arrayBuffer());
  const isControl = (byte) => (byte < 32 && ![9, 10, 13, 27].includes(byte)) || byte === 127;
  const isUtf16 = (head[0] === 0xff && head[1] === 0xfe) || (head[0] === 0xfe && head[1] === 0xff);
  const text = new TextDecoder().decode(head).trim();
  const isWords = head[0] !== 0x80 && !head.some(isControl) && text.includes(" ");
  return isUtf16 || (isWords && (!TEXT_FORM.test(text) || /^\{.*\}\r?\n\s*\{/.test(text)));
}

/** Reads {name, blob}, where the name may contain folders. Each file gets a path and what a command takes for it: that path, or its folder. */
async function examined(found) {
  const taken = new Set();
  const files = found.map(({ name, blob }) => {
    let prefix = "";
    for (let number = 2; taken.has(prefix + name); number++) prefix = `${number}/`;
    taken.add(prefix + name);
    const isInside = name.includes("/");
    return { path: pathOf(prefix + name), blob, isInside, argument: pathOf(prefix + (isInside ? name.split("/")[0] : name)) };
  });
  const areText = await Promise.all(files.map(({ blob }) => isText(blob)));
  const withSnapshots = new Set(files.filter((_, place) => !areText[place]).map(({ argument }) => argument));
  // Text beside the snapshots of a folder, such as notes, is skipped by the program.
  return files.map((file) => (withSnapshots.has(file.argument) ? file : { ...file, argument: file.path, isLog: true }));
}

/** Begins to analyse these files: the snapshots, and in an analysis of its own what is a log. A limit replaces the chosen one. */
async function analyse(found, title, limit) {
  if (found.length === 0) return tell("There is no file in that. Drop a snapshot, a folder of snapshots or a log.", true);
  const files = await examined(found);
  const logs = files.filter(({ isLog }) => isLog);
  const others = files.filter(({ isLog }) => !isLog);
  for (const [isLog, some] of [[true, logs], [false, others]]) if (some.length) begin({ files: some, isLog, limit }, title);
}

function begin({ files, isLog, limit }, title) {
  const paths = [...new Set(files.map(({ argument }) => argument))];
  const name = (path) => shown(isLog || !files.some((file) => file.isInside && file.argument === path) ? path.split("/").at(-1) : path.replace(/^\.\//, ""));
  const bytes = files.reduce((sum, { blob }) => sum + blob.size, 0);
  const names = files.map(({ path }) => shown(path.split("/").at(-1)));
  const analysis = new Analysis({
    files: files.map(({ path, blob }) => ({ path, blob })), isLog, limit, paths,
    title: title ?? (paths.length > 2 ? `${paths.length} ${paths.length === files.length ? "files" : "folders and files"}` : paths.map(name).join(" and ")),
    details: `${size(bytes)}${names.length > 2 ? `: ${names.slice(0, 4).join(", ")}${names.length > 4 ? " …" : ""}` : ""}`,
  });
  tell(`${analysis.drop.title} is being read.`);
  analyses.unshift(analysis);
  $("analyses").prepend(analysis.element);
  $("how").hidden = true;
  schedule();
  analysis.showProgress();
  analysis.element.scrollIntoView({ block: "nearest" });
}

/** The files in a folder, and in its folders, by its handle. */
async function filesOf(folder, path = folder.name) {
  const inside = [];
  for await (const child of folder.values()) {
    const name = `${path}/${child.name}`;
    inside.push(child.kind === "directory" ? filesOf(child, name) : child.getFile().then((blob) => [{ name, blob }]));
  }
  return (await Promise.all(inside)).flat();
}

/** The same by its entry, for browsers without handles. In a page that was opened from a disk, Chromium cannot read entries. */
async function filesIn(entry) {
  const path = entry.fullPath.replace(/^\//, "");
  if (entry.isFile) return [{ name: path, blob: await new Promise((done, fail) => entry.file(done, fail)) }];
  const [reader, entries] = [entry.createReader(), []];
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (some.length === 0) break;
    entries.push(...some);
  }
  return (await Promise.all(entries.map(filesIn))).flat();
}

async function dropped(transfer) {
  // The transfer is empty once the event has ended.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const given = items.map((item) => {
    const entry = item.webkitGetAsEntry?.();
    return { entry, file: item.getAsFile(), handle: entry?.isDirectory ? item.getAsFileSystemHandle?.() : null };
  });
  const text = transfer.getData("text/plain");
  if (given.length === 0 && text.trim()) return pasted(text);
  const found = await Promise.all(given.map(async ({ entry, file, handle }) => {
    const folder = await handle;
    return folder ? filesOf(folder) : entry?.isDirectory || !file ? filesIn(entry) : [{ name: file.name, blob: file }];
  }));
  return analyse(found.flat());
}

const pasted = async (text) => begin({ files: [{ path: "pasted.log", argument: "pasted.log", blob: new Blob([text]) }], isLog: true }, "Pasted log");

async function openExample() {
  const { example } = await loaded;
  await analyse([{ name: "gpt2_varlen.limit16_gc.pickle.xz", blob: new Blob([example]) }], "Example: GPT-2 under a limit of 16 GiB", "16GiB");
}

/** Waits for something that may fail, and says why if it does. */
const attempt = (work, failure = "That could not be read") => work.catch((error) => tell(`${failure}: ${error.message}`, true));

/** The length of the longest text that a field takes: a browser needs minutes to lay out millions of lines. */
const LONGEST_SHOWN = 200_000;

function listen() {
  const isOver = (event, is) => {
    event.preventDefault();
    // Then frames of reports let files through, which would otherwise leave the page for the file.
    document.documentElement.classList.toggle("dragging", is);
  };
  addEventListener("dragenter", (event) => isOver(event, true));
  addEventListener("dragover", (event) => isOver(event, true));
  addEventListener("dragleave", (event) => event.relatedTarget ?? isOver(event, false));
  addEventListener("drop", (event) => {
    isOver(event, false);
    $("log").close();
    attempt(dropped(event.dataTransfer));
  });
  addEventListener("paste", (event) => {
    const { clipboardData: given } = event;
    const isForField = given.files.length === 0 && given.getData("text/plain").length <= LONGEST_SHOWN;
    if (isForField && event.target.closest?.("textarea, input")) return;
    event.preventDefault();
    $("log").close();
    attempt(dropped(given));
  });
  $("choose").addEventListener("click", () => $("files").click());
  $("choose-folder").addEventListener("click", () => $("folder").click());
  for (const input of [$("files"), $("folder")]) {
    input.addEventListener("change", () => {
      attempt(analyse([...input.files].map((file) => ({ name: file.webkitRelativePath || file.name, blob: file }))));
      input.value = "";
    });
  }
  $("paste").addEventListener("click", () => $("log").showModal());
  $("log").addEventListener("close", () => {
    const text = $("log-text").value;
    $("log-text").value = "";
    if ($("log").returnValue === "explain" && text.trim()) attempt(pasted(text));
    $("log").returnValue = "";
  });
  $("example").addEventListener("click", (event) => {
    event.preventDefault();
    attempt(openExample());
  });
  $("limit").addEventListener("change", remember);
  $("other").addEventListener("change", remember);
}

$("unstarted").remove();
recall();
listen();
if (location.hash === "#example") attempt(openExample());
loaded.then(() => (document.documentElement.dataset.ready = "true"), () => {});
