// The page: a list of devices, of which some are shown, and the theme. A device is set up when it is first shown.

const views = [...document.querySelectorAll("section.device")].map((section) => new DeviceView(section));
const tabs = [...document.querySelectorAll("[role=tab]")];

function redraw() {
  readTheme();
  for (const view of views) if (!view.section.hidden) view.draw();
}

/** Shows the devices at these places. */
function choose(places) {
  views.forEach((view, place) => { view.section.hidden = !places.includes(place); });
  tabs.forEach((tab, place) => tab.setAttribute("aria-selected", places.includes(place)));
  for (const view of places.map((place) => views[place])) {
    view.setUp().then(redraw, (error) => {
      view.section.prepend(element("p", { class: "note" }, `The graphs cannot be drawn: ${error.message}. A browser from 2023 or later is needed.`));
      throw error;
    });
  }
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; redraw(); };
prefersDark.addEventListener("change", (event) => setTheme(event.matches));
document.querySelector(".theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(prefersDark.matches);
tabs.forEach((tab, place) => tab.addEventListener("click", () => choose([place])));
addEventListener("resize", redraw);
choose([0]);
})();
