// Where does a key live? Asked while it is typed, and again while it stands there, for reasons change.

import { parse, patch } from "./patch.js";
import { light, point } from "./ring.js";

const WAIT_MS = 120;
const AGAIN_MS = 2000;

export class Asker {
  constructor(pool) {
    this.pool = pool;
    this.field = pool.querySelector(".ask input[name=key]");
    this.picked = "";
    this.timer = 0;
    this.asked = 0;
    this.answered = 0;
    this.field.addEventListener("input", () => this.soon());
    pool.querySelector(".ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    pool.addEventListener("click", (event) => {
      const name = event.target.closest(".pick")?.closest("tr").dataset.backend;
      if (name) this.pick(name === this.picked ? "" : name);
    });
    if (!this.field.value) this.field.value = this.answer().querySelector("q")?.textContent ?? "";
    this.show();
  }

  answer() {
    return this.pool.querySelector(".key");
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  async ask() {
    const mine = ++this.asked;
    this.answered = Date.now();
    const query = new URLSearchParams({ pool: this.pool.dataset.pool, key: this.field.value });
    let piece = "";
    let why = "The proxy does not answer.";
    try {
      const answer = await fetch(`page/key?${query}`);
      if (answer.ok) piece = await answer.text();
      else why = `The proxy answers ${answer.status}.`;
    } catch {
      // That is what `why` says.
    }
    if (mine !== this.asked) return;
    if (piece) patch(this.answer(), parse(piece));
    else if (query.get("key") !== this.answer().querySelector("q")?.textContent) this.deny(why);
    this.show();
  }

  // Nothing is known of the key that stands there. What was known of the same one is as old as the rest of the page, and
  // the page says so.
  deny(why) {
    const said = document.createElement("p");
    said.className = "none";
    said.textContent = why;
    for (const name of Object.keys(this.answer().dataset)) delete this.answer().dataset[name];
    this.answer().replaceChildren(said);
  }

  // The page around it has changed; what was typed stays typed.
  retype(text) {
    if (!text) return;
    this.field.value = text;
    this.ask();
  }

  pick(name) {
    this.picked = name;
    this.show();
  }

  letGo() {
    this.field.value = "";
    this.picked = "";
    this.ask();
  }

  show() {
    const { turn, owner, hash } = this.answer().dataset;
    const figure = this.pool.querySelector("figure.ring");
    for (const row of this.pool.querySelectorAll(".backends tbody tr")) {
      const isPicked = row.dataset.backend === this.picked;
      row.toggleAttribute("data-ui-picked", isPicked);
      row.querySelector(".pick").setAttribute("aria-pressed", isPicked);
    }
    for (const item of this.pool.querySelectorAll(".hot li")) {
      item.toggleAttribute("data-ui-same", Boolean(hash) && item.dataset.hash === hash);
    }
    if (!figure) return;
    light(figure, this.picked || owner || "");
    point(figure, turn === undefined ? null : Number(turn), owner);
  }

  // After news.
  follow() {
    this.show();
    if (this.field.value && Date.now() - this.answered > AGAIN_MS) this.ask();
  }
}
