// Lights on the ring: the arcs of one backend, and the place of a key.

const SVG = "http://www.w3.org/2000/svg";
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CENTRE = 160;

function make(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Lights up the arcs of a backend, or of nobody when `name` is empty.
export function light(figure, name) {
  figure.toggleAttribute("data-ui-lit", Boolean(name));
  for (const circle of figure.querySelectorAll("circle[data-backend]")) {
    circle.toggleAttribute("data-ui-on", circle.dataset.backend === name);
  }
  const place = figure.querySelector(".lit");
  place.replaceChildren();
  if (name && figure.classList.contains("band")) place.append(...arcs(figure, name));
}

function arcs(figure, name) {
  const member = JSON.parse(figure.dataset.members).indexOf(name);
  const code = ALPHABET[member >> 6] + ALPHABET[member & 63];
  const places = figure.dataset.owners.match(/../g) ?? [];
  const made = [];
  places.forEach((owner, at) => {
    if (owner !== code) return;
    const angle = ((at + 0.5) / places.length) * 2 * Math.PI;
    const [x, y] = [Math.sin(angle), -Math.cos(angle)];
    const ends = { x1: CENTRE + 110 * x, y1: CENTRE + 110 * y, x2: CENTRE + 148 * x, y2: CENTRE + 148 * y };
    made.push(make("line", ends));
  });
  return made;
}

// Points at a place, from 0 to 1 clockwise from the top, and names its owner in the middle; at nothing when null.
export function point(figure, turn, owner) {
  const place = figure.querySelector(".needle");
  place.replaceChildren();
  const caption = figure.querySelector("figcaption");
  if (turn === null) {
    caption.removeAttribute("data-ui-owner");
    return;
  }
  caption.setAttribute("data-ui-owner", short(owner || "nobody"));
  place.append(
    make("line", { x1: CENTRE, y1: 80, x2: CENTRE, y2: 6 }),
    make("circle", { cx: CENTRE, cy: 6, r: 4.5 }),
  );
  place.setAttribute("transform", `rotate(${(turn * 360).toFixed(3)} ${CENTRE} ${CENTRE})`);
}

// Long names lose their middle: what tells them apart is at their ends.
function short(name) {
  return name.length > 22 ? `${name.slice(0, 9)}\u2026${name.slice(-9)}` : name;
}
