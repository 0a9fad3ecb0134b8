"use strict";

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const SORTS = {
  number: ["number", (pair) => pair.number],
  moved: ["moved most", (pair) => -pair.moved],
  still: ["moved least", (pair) => pair.moved],
  cell: ["largest cluster", (pair) => -pair.cell],
  caption: ["nearest caption", (pair) => pair.captions[0] ?? ""],
};

function card(pair, size) {
  const both = pair.before !== undefined;
  const name = pair.captions[0] ?? "";
  const frame = element("div", { className: "frame" });
  const draw = () => {
    const pictures = both ? [["before", pair.before], ["after", pair.after]] : [["after", pair.after]];
    for (const [kind, source] of pictures) {
      const alt = kind === "after" ? name : "";
      frame.append(element("img", { className: kind, width: size, height: size, alt, decoding: "async", src: source }));
    }
    if (both) frame.append(element("div", { className: "cut" }));
  };
  const range = element("input", { type: "range", min: 0, max: 100, value: 50 });
  range.setAttribute("aria-label", `pair ${pair.number}: initial to the left, distilled to the right`);
  range.addEventListener("input", () => frame.style.setProperty("--cut", `${range.value}%`));
  const changed = both && pair.first[0] !== pair.captions[0];
  const facts = [`#${pair.number}`];
  if (pair.cell !== undefined) facts.push(`cluster of ${pair.cell.toLocaleString("en")}`);
  if (both) facts.push(`moved ${pair.moved.toFixed(1)} of 255`);
  const item = element(
    "li",
    { className: both ? "pair" : "pair single" },
    frame,
    both ? range : null,
    element("p", {}, name),
    changed ? element("p", { className: "was" }, `was: ${pair.first[0]}`) : null,
    element("p", { className: "small" }, facts.join(" · ")),
  );
  const also = pair.captions.slice(1);
  if (also.length) item.append(element("p", { className: "small also", title: also.join("\n") }, `also near: ${also.join(" · ")}`));
  return { item, draw };
}

function showGallery(place, data) {
  const list = place.querySelector(".pairs");
  const form = place.querySelector("form");
  const pairs = data.pairs.map((pair, number) => ({ ...pair, number }));
  const has = (key) => pairs.every((pair) => pair[key] !== undefined);
  if (!has("before")) form.querySelector(".with-before").remove();
  for (const [value, [label]] of Object.entries(SORTS)) {
    if ((value === "moved" || value === "still") && !has("moved")) continue;
    if (value === "cell" && !has("cell")) continue;
    form.sort.append(element("option", { value }, label));
  }
  // A card is drawn once: when it comes near the window or when the page is printed, whichever is first.
  const waiting = new Map();
  const drawOnce = (item) => {
    watcher.unobserve(item);
    waiting.get(item)?.();
    waiting.delete(item);
  };
  const watcher = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawOnce(entry.target)),
    { rootMargin: "600px" },
  );
  for (const pair of pairs) {
    const { item, draw } = card(pair, data.size);
    pair.item = item;
    pair.words = [...pair.captions, ...(pair.first ?? [])].join(" ").toLowerCase();
    waiting.set(item, draw);
    watcher.observe(item);
  }
  addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawOnce));
  const update = () => {
    const wanted = form.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const key = SORTS[form.sort.value][1];
    const shown = pairs.filter((pair) => wanted.every((word) => pair.words.includes(word)));
    shown.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.number - b.number));
    list.replaceChildren(...shown.map((pair) => pair.item));
    form.count.value = shown.length === pairs.length ? `${pairs.length} pairs` : `${shown.length} of ${pairs.length} pairs`;
    if (form.show) list.dataset.show = form.show.value;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

function showGalleries() {
  const galleries = JSON.parse(document.getElementById("galleries").textContent);
  for (const place of document.querySelectorAll(".gallery")) showGallery(place, galleries[Number(place.dataset.run)]);
}
