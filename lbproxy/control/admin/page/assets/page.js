// The live page. What is shown is made by the server; this keeps it up to date and answers hands.

import { Asker } from "./key.js";
import { watch } from "./live.js";
import { parse, patch } from "./patch.js";
import { Planner } from "./plan.js";
import { Table } from "./table.js";

const main = () => document.getElementById("main");
let parts = [];

function start() {
  document.documentElement.classList.add("js");
  equip();
  tell();
  watch(`${main().dataset.boot}.${main().dataset.number}`, onNews, onState);
  document.addEventListener("keydown", onKey);
}

const askers = () => parts.filter((part) => part instanceof Asker);

function equip() {
  parts = [...document.querySelectorAll(".pool")].flatMap((pool) => [
    new Table(pool),
    new Asker(pool),
    new Planner(pool),
  ]);
}

// `what` is a whole page, or pieces of it by id.
function onNews(what) {
  const whole = what instanceof Document ? what.getElementById("main") : what.main && parse(what.main);
  if (whole) {
    const typed = new Map(askers().map((asker) => [asker.pool.dataset.pool, asker.field.value]));
    main().replaceWith(whole);
    equip();
    for (const asker of askers()) asker.retype(typed.get(asker.pool.dataset.pool));
  } else {
    for (const [id, html] of Object.entries(what)) {
      const old = document.getElementById(id);
      if (old) patch(old, parse(html));
    }
    for (const part of parts) part.follow();
  }
  tell();
}

// What stands outside of the page's own text: its title, its icon, and times as this place has them.
function tell() {
  const { title, level } = document.getElementById("verdict").dataset;
  document.title = `${title} \u2013 lbproxy`;
  announce(title);
  const icon = document.getElementById("icon");
  if (!icon.href.endsWith(`/${level}.svg`)) icon.href = `page/${level}.svg`;
  for (const time of document.querySelectorAll("time[datetime]")) {
    const text = new Date(time.dateTime).toLocaleTimeString([], { hourCycle: "h23" });
    if (time.textContent !== text) time.textContent = text;
  }
}

// For those who hear the page: the verdict when it becomes another, but not when it only counts on.
let gist = "";
function announce(title) {
  const now = title.replace(/\d[\d.,]*\s?(%|times)/g, "");
  if (gist && now !== gist) document.getElementById("announced").textContent = title;
  gist = now;
}

function onState(state, seconds) {
  const place = document.getElementById("news");
  const text = state === "live" ? "live" : `no news for ${seconds}\u202fs`;
  place.className = `news ${state}`;
  if (place.textContent !== text) place.textContent = text;
  document.body.classList.toggle("is-stale", state !== "live");
}

function onKey(event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    for (const part of parts) part.letGo?.();
    document.activeElement?.blur();
  } else if (!isTyping && (event.key === "/" || event.key === "f")) {
    const kind = event.key === "/" ? ".ask input[name=key]" : ".filter:not([hidden])";
    const field = document.querySelector(kind);
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.scrollIntoView({ block: "nearest" });
  }
}

start();
