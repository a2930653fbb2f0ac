// Weights: what a change would move, worked out by the proxy itself, and the change.

const WAIT_MS = 300;
const FLOWS = 6;

const percent = (share) => `${(share * 100).toFixed(share < 0.00995 && share > 0 ? 2 : 1)}\u202f%`;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

async function send(method, path, body, token) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { method, headers, body: JSON.stringify(body) }).catch(() => {
    throw new Error("The proxy does not answer.");
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(said.detail || said.title || `The proxy answers ${answer.status}.`);
    throw Object.assign(error, { status: answer.status });
  }
  return said;
}

export class Planner {
  constructor(pool) {
    this.pool = pool.dataset.pool;
    this.form = pool.querySelector(".plan");
    this.outcome = this.form.querySelector(".outcome");
    this.timer = 0;
    this.asked = 0;
    this.isForced = false;
    this.form.addEventListener("input", (event) => {
      if (event.target.closest(".weights")) this.changed();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    this.form.querySelector("button[value=undo]")?.addEventListener("click", () => this.undo());
  }

  lines() {
    return [...this.form.querySelectorAll(".weights li")];
  }

  // What is wanted of the backends that shall be otherwise than they are.
  changes() {
    const changes = {};
    for (const line of this.lines()) {
      const [weight, drain] = line.querySelectorAll("input");
      const wanted = {};
      const number = Number(weight.value);
      if (weight.value === "" && weight.dataset.decided && !weight.validity.badInput) {
        wanted.weight = null; // also where what was decided is the file's weight itself
      } else if (weight.value !== "" && number !== Number(weight.dataset.now)) {
        wanted.weight = number === Number(weight.dataset.file) ? null : number; // null: no decision any more
      }
      if (drain.checked !== (drain.dataset.now === "yes")) wanted.state = drain.checked ? "drain" : "active";
      const isChanged = Object.keys(wanted).length > 0;
      line.toggleAttribute("data-ui-changed", isChanged);
      if (isChanged) changes[line.dataset.backend] = wanted;
    }
    return changes;
  }

  changed() {
    clearTimeout(this.timer);
    const changes = this.changes();
    const isReady = this.form.checkValidity() && Object.keys(changes).length > 0;
    this.force(false);
    const apply = this.form.querySelector(".apply");
    if (apply) apply.disabled = !isReady;
    if (!isReady) {
      this.forget();
      this.outcome.replaceChildren();
      const wrong = this.form.querySelector(".weights :invalid");
      if (wrong) this.say(`${wrong.ariaLabel}: a number from 0 to ${Number(wrong.max).toLocaleString("en")}.`, "bad");
      return;
    }
    this.timer = setTimeout(() => this.ask(changes), WAIT_MS);
  }

  // An answer that is still on its way shall not be shown.
  forget() {
    clearTimeout(this.timer);
    this.asked += 1;
  }

  async ask(changes) {
    const mine = ++this.asked;
    try {
      const plan = await send("POST", "v1/plan", { pool: this.pool, backends: changes });
      if (mine === this.asked) this.show(plan);
    } catch (error) {
      if (mine === this.asked) this.say(error.message, "bad");
    }
  }

  show(plan) {
    const heading = element("p");
    heading.append("This would move ", element("b", percent(plan.moved_share)), " of all keys. ");
    if (!plan.needless_share) heading.append("No others move.");
    const keys = plan.keys;
    if (keys?.sampled) heading.append(` Of the users of late, ${percent(keys.moved_share)} would change their backend.`);
    const flows = element("ul", undefined, "flows");
    const widest = plan.flows[0]?.share || 1;
    for (const flow of plan.flows.slice(0, FLOWS)) {
      const line = element("li");
      const meter = element("meter");
      meter.value = flow.share / widest;
      line.append(element("span", `${flow.from || "nobody"} \u2192 ${flow.to || "nobody"}`), meter);
      line.append(element("b", percent(flow.share)));
      flows.append(line);
    }
    if (plan.flows.length > FLOWS) flows.append(element("li", `and ${plan.flows.length - FLOWS} more ways`, "none"));
    const warnings = (plan.warnings ?? []).map((text) => element("p", text, "said notice"));
    this.outcome.replaceChildren(...warnings, heading, flows);
  }

  async apply() {
    const value = (name) => this.form.elements[name]?.value ?? "";
    const changes = this.changes();
    const order = { backends: changes };
    if (value("@ttl")) order.ttl = value("@ttl");
    if (value("@reason")) order.reason = value("@reason");
    if (this.isForced) order.force = true;
    this.forget();
    try {
      const done = await send("PATCH", `v1/pools/${encodeURIComponent(this.pool)}/backends`, order, value("@token"));
      const applied = `Applied to ${Object.keys(changes).join(", ")}`;
      if (done.not_saved) this.say(`${applied}, but it would not outlive a restart: ${done.not_saved}.`, "notice");
      else this.say(`${applied}.`, "good");
      this.form.querySelector(".apply").disabled = true;
      this.force(false);
    } catch (error) {
      this.say(error.message, "bad");
      this.force(error.status === 409);
    }
  }

  // What the proxy refuses because it would do harm can be insisted on.
  force(isForced) {
    this.isForced = isForced;
    const button = this.form.querySelector("button[value=apply]");
    if (button) button.textContent = isForced ? "Apply all the same" : "Apply";
  }

  undo() {
    for (const line of this.lines()) this.reset(line);
    this.changed();
  }

  reset(line) {
    const [weight, drain] = line.querySelectorAll("input");
    weight.value = weight.dataset.now;
    drain.checked = drain.dataset.now === "yes";
  }

  // After news: what has become as it was wanted is no change any more.
  follow() {
    const changed = this.changes();
    for (const line of this.lines()) {
      if (!changed[line.dataset.backend] && !line.contains(document.activeElement)) this.reset(line);
    }
    if (!Object.keys(changed).length && !this.outcome.querySelector(".said")) this.outcome.replaceChildren();
  }

  say(text, kind) {
    this.outcome.replaceChildren(element("p", text, `said ${kind}`));
  }
}
