// A click on a frame gives it the whole width, and a click on the lowest frame everything.
const frames = [...document.querySelectorAll("g.frame")];
const number = (frame, name) => Number(frame.dataset[name]);
const all = frames[0];

function show(chosen) {
  const left = number(all, "x"), scale = number(all, "w") / number(chosen, "w");
  for (const frame of frames) {
    const isAround = number(frame, "row") < number(chosen, "row")
      && number(frame, "x") <= number(chosen, "x") + 0.01
      && number(frame, "x") + number(frame, "w") >= number(chosen, "x") + number(chosen, "w") - 0.01;
    const x = isAround ? left : left + (number(frame, "x") - number(chosen, "x")) * scale;
    const width = isAround ? number(all, "w") : number(frame, "w") * scale;
    const isShown = x >= left - 0.01 && x + width <= left + number(all, "w") + 0.05;
    frame.style.display = isShown ? "" : "none";
    if (!isShown) continue;
    const rect = frame.querySelector("rect"), text = frame.querySelector("text"), name = frame.dataset.name;
    rect.setAttribute("x", x);
    rect.setAttribute("width", Math.max(width - 0.5, 0.1));
    text.setAttribute("x", x + 3);
    const fits = Math.floor(width / 6.6) - 1;
    text.textContent = fits < 3 ? "" : name.length <= fits ? name : name.slice(0, fits - 2) + "..";
  }
}

if (all) for (const frame of frames) frame.addEventListener("click", () => show(frame));
