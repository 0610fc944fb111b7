// The audit log, the newest entries first.

import { get, poll } from "./api.js";
import { count, el, empty, head, show, table, when } from "./dom.js";

const PAGE = 50;

export function audit({ place, signal, failed, fine }) {
  let back = 0;  // entries that are newer than the page
  const turn = (by) => { back = Math.max(0, back + by); askNow(); };
  const askNow = poll(async () => {
    const { newest } = await get("audit?limit=1", signal);
    back = Math.min(back, Math.max(0, newest - 1));
    const last = newest - back, after = Math.max(0, last - PAGE);
    const { entries } = last > 0 ? await get(`audit?after=${after}&limit=${Math.max(1, last - after)}`, signal) : { entries: [] };
    show(place, [entries, newest, back], () => [
      head("Audit", "who changed what, when and why"),
      el("section", { class: "panel", "aria-label": "Audit" },
        entries.length ? table("Audit log", columns, [...entries].reverse()) : empty("Nothing has been changed yet", "Each change by an administrator is written down here."),
        newest > PAGE ? el("div", { class: "pager" }, el("span", {}, `${count(after + 1)}–${count(last)} of ${count(newest)}`),
          el("button", { class: "plain", type: "button", disabled: back === 0, "data-focus": "newer", onclick: () => turn(-PAGE) }, "Newer"),
          el("button", { class: "plain", type: "button", disabled: after === 0, "data-focus": "older", onclick: () => turn(PAGE) }, "Older")) : null),
    ]);
    fine();
  }, signal, { failed, everyMs: 5000 });
}

const columns = [
  { title: "No.", kind: "num", cell: (each) => String(each.number) },
  { title: "At", kind: "nowrap", cell: (each) => when(each.at_s) },
  { title: "Who", kind: "name", cell: (each) => each.change.who },
  { title: "Action", cell: (each) => each.change.action },
  { title: "Object", kind: "name", cell: (each) => el("span", {}, el("span", { class: "dim" }, `${each.change.kind} `), each.change.name) },
  { title: "Why", kind: "text", cell: (each) => each.change.reason },
  { title: "Change", kind: "text", cell: (each) => changed(each) },
];

function changed({ number, change: { before, after, of } }) {
  if (of) return `entry ${of} was not made`;
  if (!before && !after) return "";
  const fields = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  const differing = [...fields].filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  if (!differing.length) return "";
  return el("details", { "data-key": String(number) }, el("summary", {}, differing.slice(0, 3).join(", ") + (differing.length > 3 ? `, ${differing.length - 3} more` : "")),
    el("pre", {}, differing.map((name) => `${name}: ${JSON.stringify(before?.[name] ?? null)} → ${JSON.stringify(after?.[name] ?? null)}`).join("\n")));
}
