// One device's section is set up when it is first shown.

const views = new Map();

async function setUp(section) {
  if (views.has(section)) return;
  views.set(section, []);
  const run = await readRun(section.querySelector(".data").textContent.trim());
  section.querySelector(".data").remove();
  const { moments } = run.meta;
  const nearest = (moment) => (moments ? moments.reduce((best, at) => (Math.abs(at - moment) < Math.abs(best - moment) ? at : best)) : moment);
  let timeline = null;
  const pick = (moment) => {
    const at = nearest(moment);
    heap.show(at);
    timeline?.select(at);
  };
  const heap = new HeapMap(section, run, pick);
  const charts = [heap];
  if (run.entries) {
    timeline = new Timeline(section, run, pick);
    charts.push(timeline, new TriedChart(section, run));
  }
  views.set(section, charts);
  const oom = run.meta.markers.find((marker) => marker[1] === "oom");
  pick(oom ? oom[0] : run.meta.peak_reserved);
  section.dataset.ready = "true";
}

function redraw() {
  readTheme();
  for (const charts of views.values()) for (const chart of charts) chart.draw();
}

function choose(device) {
  for (const section of document.querySelectorAll("section.device")) section.hidden = section.dataset.device !== device;
  for (const tab of document.querySelectorAll("[role=tab]")) tab.setAttribute("aria-selected", tab.dataset.device === device);
  const section = document.querySelector("section.device:not([hidden])");
  setUp(section).then(redraw, (error) => {
    section.prepend(element("p", { class: "note" }, `The graphs cannot be drawn: ${error.message}. A browser from 2023 or later is needed.`));
    throw error;
  });
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; redraw(); };
prefersDark.addEventListener("change", (event) => setTheme(event.matches));
document.querySelector(".theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(prefersDark.matches);
for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => choose(tab.dataset.device));
addEventListener("resize", redraw);
choose(document.querySelector("section.device").dataset.device);
})();
