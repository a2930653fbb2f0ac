// The table of backends: sorted by a click on a column's head, filtered by a word, cut to the first few when long.

const FEW = 12;
// Numbers are asked for the largest first, names as the configuration has them.
const FIRST_DOWN = (key) => key !== "name";

export class Table {
  constructor(pool) {
    this.pool = pool;
    this.key = this.rows().length > FEW ? "diff" : "name";
    this.down = FIRST_DOWN(this.key);
    this.all = false;
    this.sorted = 0;
    this.filter = pool.querySelector(".filter");
    this.more = pool.querySelector("button[value=more]");
    this.filter.addEventListener("input", () => this.refresh());
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.refresh();
    });
    for (const head of pool.querySelectorAll("th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => this.sortBy(head.dataset.sort));
      head.append(button);
    }
    pool.querySelector(".backends").toggleAttribute("data-ui-alone", this.rows().length < 2);
    this.sort();
    this.refresh();
  }

  rows() {
    return [...this.pool.querySelectorAll(".backends tbody tr")];
  }

  sortBy(key) {
    this.down = key === this.key ? !this.down : FIRST_DOWN(key);
    this.key = key;
    this.sort();
    this.refresh();
  }

  sort() {
    const sign = this.down ? -1 : 1;
    const value = (row) => Number(row.getAttribute(`data-${this.key}`));
    const place = (row) => Number(row.dataset.name);
    const before = this.rows();
    const after = [...before].sort((a, b) => sign * (value(a) - value(b)) || place(a) - place(b));
    const body = before[0]?.parentNode;
    if (before.some((row, at) => row !== after[at])) body.append(...after);
    this.sorted = Date.now();
    for (const head of this.pool.querySelectorAll("th[data-sort]")) {
      if (head.dataset.sort === this.key) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  // After news: the order follows now and then, but not under a hand that is just reaching for a row.
  follow() {
    const body = this.pool.querySelector(".backends tbody");
    const isBusy = body.matches(":hover") || body.contains(document.activeElement);
    if (this.key !== "name" && !isBusy && Date.now() - this.sorted > 3000) this.sort();
    this.refresh();
  }

  refresh() {
    const rows = this.rows();
    const words = this.filter.value.trim().toLowerCase();
    const fitting = rows.filter((row) => row.dataset.backend.toLowerCase().includes(words));
    // Whoever is out is among the few, wherever the order has put it.
    const first = [...fitting].sort((a, b) => b.matches(".out") - a.matches(".out"));
    const shown = new Set(this.all ? fitting : first.slice(0, FEW));
    for (const row of rows) row.toggleAttribute("data-ui-hidden", !shown.has(row));
    this.filter.hidden = rows.length <= FEW;
    this.more.parentNode.hidden = fitting.length <= FEW;
    this.more.textContent = this.all ? `Show ${FEW}` : `Show all ${fitting.length}`;
  }
}
