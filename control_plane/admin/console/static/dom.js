// Elements and texts. Data becomes text nodes only, so that a name or an error that holds markup stays text.

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

// Replaces what a place shows, if it is to show something else: a reader's selection and focus outlive a poll.
const shown = new WeakMap();
export function show(place, data, make) {
  const key = JSON.stringify(data);
  if (shown.get(place) === key) return;
  shown.set(place, key);
  const id = place.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const opened = new Set([...place.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  place.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  place.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  place.querySelectorAll("details").forEach((each) => { each.open = opened.has(each.dataset.key); });
  if (id) [...place.querySelectorAll("[data-focus]")].find((each) => each.dataset.focus === id)?.focus();
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "" : whole.format(value));
export const decimal = (value) => (value === null || value === undefined ? "" : short.format(value));
export const percent = (weight) => `${short.format(weight / 100)} %`;
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export function bytes(value) {
  if (value === null || value === undefined) return "";
  if (value >= 2 ** 30) return `${short.format(value / 2 ** 30)} GiB`;
  return value >= 2 ** 20 || value === 0 ? `${short.format(value / 2 ** 20)} MiB` : `${short.format(value / 2 ** 10)} KiB`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 120) return `${short.format(value)} s`;
  return value < 7200 ? `${whole.format(value / 60)} min` : `${short.format(value / 3600)} h`;
}

export function when(time) {
  const date = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  if (Number.isNaN(date.getTime())) return el("span", {}, String(time));
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const isToday = date.toDateString() === new Date().toDateString();
  return el("time", { datetime: date.toISOString(), title: date.toISOString() }, isToday ? clock : `${day} ${clock}`);
}

const TONES = {
  READY: "good", LOADING: "warn", UNLOADING: "warn", up: "good", down: "bad", ejected: "bad", silent: "warn", draining: "warn",
  done: "good", "rolled back": "bad", aborted: "bad", paused: "warn", failed: "bad",
};
export const state = (text, tone = TONES[text] ?? "") => el("span", { class: `state ${tone}` }, text);

export function meter(part, of, tone = "") {
  const share = of > 0 ? Math.max(0, Math.min(1, part / of)) : 0;
  const bar = el("i");
  bar.style.width = `${share * 100}%`;
  return el("div", { class: `meter ${tone}`, "aria-hidden": "true" }, bar);
}

// parts: [{weight, next}], of 10,000 together.
export function split(parts) {
  return el("div", { class: "split", "aria-hidden": "true" }, parts.map(({ weight, next }) => {
    const bar = el("i", { class: next ? "next" : "" });
    bar.style.flexGrow = String(weight);
    bar.style.flexBasis = "0";
    return weight > 0 ? bar : null;
  }));
}

export const empty = (title, advice) => el("div", { class: "empty" }, el("b", {}, title), advice);

export const head = (title, sub, ...right) =>
  el("div", { class: "head" }, el("h1", {}, title), sub ? el("span", { class: "sub" }, sub) : null, right.length ? el("div", { class: "right" }, right) : null);

export const panel = (title, sub, ...inside) =>
  el("section", { class: "panel", "aria-label": title }, el("div", { class: "top" }, el("h2", {}, title), sub ? el("span", { class: "sub" }, sub) : null), inside);

// columns: [{title, kind, cell, sort}]; kind is a class of the cells, such as num.
export function table(label, columns, rows, order) {
  const title = (column) => {
    if (!order || !column.sort) return column.title;
    return el("button", { type: "button", "data-focus": `sort ${column.title}`, onclick: () => order.by(column.sort) },
      column.title + (order.key === column.sort ? (order.down ? " ↓" : " ↑") : ""));
  };
  const sorted = (column) => (order && order.key === column.sort ? (order.down ? "descending" : "ascending") : undefined);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label, "data-focus": label },
    el("table", {},
      el("thead", {}, el("tr", {}, columns.map((each) => el("th", { class: each.kind, scope: "col", "aria-sort": sorted(each) }, title(each))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((each) => el("td", { class: each.kind, "data-title": each.title }, each.cell(row) || null)))))));
}
