// The page: devices, of which some are shown, and the theme. A device is set up when it is first shown. Devices of one file are chosen by
// tabs, those of several by ticks in the table.

const sections = [...document.querySelectorAll("section.device")];
const views = new Map(sections.map((section) => [Number(section.dataset.section), new DeviceView(section)]));
const tabs = [...document.querySelectorAll("[role=tab]")];
const ticks = [...document.querySelectorAll("[data-show]")];

function redraw() {
  readTheme();
  for (const view of views.values()) if (!view.section.hidden) view.draw();
}

/** The numbers of the devices that are shown. */
const shown = () => [...views.keys()].filter((number) => !views.get(number).section.hidden);

/** Shows the devices with these numbers. */
function choose(numbers) {
  for (const [number, view] of views) view.section.hidden = !numbers.includes(number);
  for (const tab of tabs) tab.setAttribute("aria-selected", numbers.includes(Number(tab.dataset.section)));
  for (const tick of ticks) tick.checked = numbers.includes(Number(tick.dataset.show));
  for (const number of numbers) views.get(number).setUp().then(redraw);
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; redraw(); };
prefersDark.addEventListener("change", (event) => setTheme(event.matches));
document.querySelector(".theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(prefersDark.matches);
for (const tab of tabs) tab.addEventListener("click", () => choose([Number(tab.dataset.section)]));
for (const tick of ticks) {
  const number = Number(tick.dataset.show);
  tick.addEventListener("change", () => choose(tick.checked ? [...shown(), number] : shown().filter((other) => other !== number)));
}
addEventListener("resize", redraw);
choose(shown());
})();
