// Models: a list that is filtered, sorted and paged here, and one model with all that is known of it.

import { get, getOr, poll } from "./api.js";
import { confirmed } from "./confirm.js";
import { bytes, count, el, empty, head, many, panel, seconds, decimal, show, state, table } from "./dom.js";

const PAGE = 100;
const kept = { text: "", state: "", key: "name", down: false, page: 0 };

const VALUES = {
  name: (each) => each.name, state: (each) => each.state, memory: (each) => each.memory_bytes ?? -1, tier: (each) => each.tier ?? "",
  replicas: (each) => each.servers.length, variant: (each) => each.variant ?? "",
};
const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

export function models(view) {
  if (view.rest[0]) detail(view, view.rest[0]);
  else list(view);
}

function list({ place, signal, failed, fine }) {
  let all = null;
  const found = el("div");
  found.style.display = "contents";
  const sub = el("span", { class: "sub" });
  const text = el("input", { type: "search", placeholder: "Filter by name or error", "aria-label": "Filter by name or error", oninput: () => { kept.text = text.value; turn(0); } });
  text.value = kept.text;
  const states = el("select", { "aria-label": "State", onchange: () => { kept.state = states.value; turn(0); } },
    [["", "All states"], ["READY", "Ready"], ["LOADING", "Loading"], ["UNLOADING", "Unloading"], ["UNAVAILABLE", "Not loaded"], ["failed", "With an error"]]
      .map(([value, name]) => el("option", { value }, name)));
  states.value = kept.state;
  const turn = (page) => { kept.page = page; draw(); };
  const order = {
    get key() { return kept.key; }, get down() { return kept.down; },
    by: (key) => { kept.down = kept.key === key ? !kept.down : false; kept.key = key; turn(0); },
  };

  const draw = () => {
    if (all === null) return;
    const wanted = kept.text.trim().toLowerCase();
    const fits = all.filter((each) => (!wanted || each.name.toLowerCase().includes(wanted) || each.reason.toLowerCase().includes(wanted))
      && (!kept.state || (kept.state === "failed" ? hasFailed(each) : each.state === kept.state)));
    const value = VALUES[kept.key];
    fits.sort((one, other) => (compare(value(one), value(other)) || compare(one.name, other.name)) * (kept.down ? -1 : 1));
    const pages = Math.max(1, Math.ceil(fits.length / PAGE));
    kept.page = Math.min(kept.page, pages - 1);
    const rows = fits.slice(kept.page * PAGE, (kept.page + 1) * PAGE);
    const ready = all.filter((each) => each.state === "READY").length;
    sub.textContent = `${count(ready)} ready of ${count(all.length)}`;
    show(found, [rows, fits.length, kept.page, kept.key, kept.down], () => el("section", { class: "panel", "aria-label": "Models" },
      rows.length ? table("Models", columns(all), rows, order) : nothing(all),
      fits.length > PAGE ? pager(fits.length, pages, turn) : null));
  };

  poll(async () => {
    all = await get("models", signal);
    if (!found.isConnected) place.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Models"), sub, el("div", { class: "right" }, text, states)), found);
    draw();
    fine();
  }, signal, { failed });
}

const nothing = (all) => all.length ? empty("No model fits the filter", "Change the text or the state above.")
  : empty("There is no model yet", "Put one into a model repository; it is listed here at once.");

const columns = (all) => [
  { title: "Model", kind: "name", sort: "name", cell: (each) => el("a", { href: `#/models/${encodeURIComponent(each.name)}`, "data-focus": `model ${each.name}` }, each.name) },
  { title: "State", sort: "state", cell: (each) => modelState(each) },
  ...(all.some((each) => each.tier !== null) ? [
    { title: "Tier", sort: "tier", cell: (each) => each.tier },
    { title: "Replicas", kind: "num", sort: "replicas", cell: (each) => count(each.servers.length) },
  ] : []),
  { title: "Memory", kind: "num", sort: "memory", cell: (each) => bytes(each.memory_bytes) },
  ...(all.some((each) => each.variant !== null) ? [{ title: "Variant", sort: "variant", cell: (each) => each.variant }] : []),
  { title: "Last error or build", kind: "text", cell: (each) => said(each) && el("div", { class: "clip", title: said(each) }, said(each)) },
];

const said = (each) => [each.reason === "unloaded" ? "" : each.reason, each.build].filter(Boolean).join(" · ");
const hasFailed = (each) => each.state === "UNAVAILABLE" && each.reason !== "" && each.reason !== "unloaded";

function modelState(each) {
  if (hasFailed(each)) return state("failed");
  return state({ READY: "ready", LOADING: "loading", UNLOADING: "unloading", UNAVAILABLE: "not loaded" }[each.state] ?? each.state,
    { READY: "good", LOADING: "warn", UNLOADING: "warn" }[each.state] ?? "");
}

function pager(number, pages, turn) {
  const button = (title, page, isOff) => el("button", { class: "plain", type: "button", disabled: isOff, "data-focus": title, onclick: () => turn(page) }, title);
  return el("div", { class: "pager" },
    el("span", {}, `${count(kept.page * PAGE + 1)}–${count(Math.min(number, (kept.page + 1) * PAGE))} of ${count(number)}`),
    button("Previous", kept.page - 1, kept.page === 0), button("Next", kept.page + 1, kept.page === pages - 1));
}

function detail({ place, signal, failed, fine, may }, name) {
  let hasFleet = true;
  const act = async (verb) => {
    await confirmed({
      title: `${verb === "load" ? "Load" : "Unload"} ${name}?`,
      advice: verb === "load" ? "It is loaded, or loaded again if its files changed. This may take minutes." : "Requests in flight finish first; later ones are refused until it is loaded again.",
      verb: verb === "load" ? "Load" : "Unload", isDanger: verb === "unload", path: `models/${encodeURIComponent(name)}/${verb}`,
    });
    askNow();  // also after a load that failed: the model's last error is another one now
  };
  const askNow = poll(async () => {
    const model = await get(`models/${encodeURIComponent(name)}`, signal);
    const fleet = hasFleet ? await getOr("fleet", signal, null) : null;
    hasFleet = fleet !== null;
    const facts = fleet?.models.find((each) => each.name === name) ?? null;
    const replicas = (fleet?.servers ?? []).flatMap((server) => server.replicas.filter((each) => each.model === name).map((each) => ({ server: server.name, ...each })));
    show(place, [model, facts, replicas], () => [
      el("div", { class: "row" }, el("a", { href: "#/models", "data-focus": "back" }, "← Models")),
      head(model.name, null, ...(may("operator", "repository") ? [
        el("button", { class: "plain", type: "button", "data-focus": "load", onclick: () => void act("load") }, model.state === "READY" ? "Reload" : "Load"),
        model.state === "READY" || replicas.length ? el("button", { class: "plain danger", type: "button", "data-focus": "unload", onclick: () => void act("unload") }, "Unload") : null,
      ] : [])),
      hasFailed(model) ? el("section", { class: "notice bad", "aria-label": "Last error" }, el("b", {}, "Last error"), el("pre", {}, model.reason)) : null,
      panel("Now", null, el("div", { class: "body" }, el("dl", {}, facts_(model, facts).flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)])))),
      fleet === null ? null : panel("Replicas", many(replicas.length, "replica"), replicas.length ? table("Replicas", [
        { title: "Server", kind: "name", cell: (each) => each.server },
        { title: "State", cell: (each) => modelState({ ...each, reason: "" }) },
        { title: "Memory", kind: "num", cell: (each) => bytes(each.bytes) },
        { title: "In flight", kind: "num", cell: (each) => count(each.in_flight) },
        { title: "Sequences", kind: "num", cell: (each) => count(each.sequences) },
        { title: "Idle for", kind: "num", cell: (each) => seconds(each.idle_s === null ? null : Math.floor(each.idle_s)) },
        { title: "Ready in", kind: "num", cell: (each) => seconds(each.ready_in_s) },
      ], replicas) : empty("No server has it", "The first request for it has it loaded.")),
    ]);
    fine();
  }, signal, { failed });
}

function facts_(model, facts) {
  const found = [["State", modelState(model)], ["Versions", model.versions.join(", ") || "none loaded"]];
  if (model.reason && !hasFailed(model)) found.push(["Triton says", model.reason]);
  if (model.memory_bytes !== null) found.push(["Memory", bytes(model.memory_bytes)]);
  if (model.variant) found.push(["Variant", model.variant], ["Chosen because", model.variant_reason ?? ""]);
  if (model.build) found.push(["Build", model.build]);
  if (model.tier) found.push(["Tier", model.tier]);
  if (facts === null) return found;
  if (model.memory_bytes === null && facts.resident_bytes > 0) found.push(["Memory", `${bytes(facts.resident_bytes)} on each server`]);
  found.push(["Replicas allowed", `${facts.min_replicas} to ${facts.max_replicas ?? "any number"}`],
    ["Expected load", `${seconds(facts.load_s)}${facts.fetch_s > 0 ? `, ${seconds(facts.fetch_s)} of it the fetch` : ""}`],
    ["Expected demand", `${decimal(facts.uses_per_s)} requests/s`]);
  if (facts.is_suspended) found.push(["Unloaded", "by an administrator: requests do not load it again"]);
  if (facts.quarantined_for_s > 0) found.push(["Quarantined", `${facts.why_quarantined} (tried again in ${seconds(Math.ceil(facts.quarantined_for_s))})`]);
  return found;
}
