// Overview: whether requests are served, what is used, the servers and what has happened lately.

import { Refusal, get, getOr, poll } from "./api.js";
import { bytes, count, decimal, el, empty, head, many, meter, panel, show, state, table } from "./dom.js";
import { eventTable } from "./events.js";
import { feed, onEvents } from "./feed.js";

const WINDOW_S = 15;
const OUTCOMES = [["requests", "succeeded"], ["failed", "failed"], ["refused", "refused"]];

export function overview({ place, signal, failed, fine, may }) {
  const parts = Object.fromEntries(["status", "tiles", "servers", "events"].map((name) => [name, el("div")]));
  Object.values(parts).forEach((each) => { each.style.display = "contents"; });
  const readings = [];
  let hasFleet = true;

  const ask = async () => {
    const ready = await readiness(signal);
    const fleet = hasFleet ? await getOr("fleet", signal, null) : null;
    hasFleet = fleet !== null;
    const models = fleet === null ? (await get("models", signal)).map((each) => each.state) : fleetStates(fleet);
    const used = may("viewer") ? (await get("usage?by=&since=today", signal)).rows[0] ?? null : null;
    if (used !== null) remember(readings, used);
    if (!place.childElementCount) place.append(head("Overview"), ...Object.values(parts));
    show(parts.status, ready, () => status(ready));
    const tiles = [modelTile(models), ...(may("viewer") ? usageTiles(used, readings) : [])];
    show(parts.tiles, tiles, () => el("div", { class: "tiles" }, tiles.map(({ name, value, note }) =>
      el("div", { class: "tile" }, el("div", { class: "name" }, name), el("div", { class: "value" }, value), el("div", { class: "note" }, note)))));
    const servers = fleet === null ? null : fleet.servers.map((each) => [each, each.replicas.length, each.replicas.reduce((sum, one) => sum + one.in_flight, 0)]);
    show(parts.servers, [servers, fleet?.notes], () => serverPanel(servers, fleet?.notes ?? []));
    showEvents();
    fine();
  };
  const showEvents = () => may("viewer") && parts.events.isConnected && show(parts.events, feed.events.slice(0, 6), () =>
    panel("Latest events", el("a", { href: "#/events" }, "All events"), feed.events.length ? eventTable(feed.events.slice(0, 6)) : empty("Nothing has happened yet", "Loads, rollouts and servers that come and go are shown here.")));
  onEvents(showEvents, signal);
  poll(ask, signal, { failed });
}

async function readiness(signal) {
  try {
    return await get("health/ready", signal);
  } catch (error) {
    if (error instanceof Refusal && error.status === 503) return { ready: false, reason: error.message, degraded: [], state_store: null };
    throw error;
  }
}

function status({ ready, reason, degraded, state_store: store }) {
  if (!ready) return el("div", { class: "notice bad" }, el("b", {}, "Not ready. "), reason);
  const why = [...degraded];
  if (store && !store.is_current) why.unshift("The state store does not answer: the last known keys, tenants and routes are in force.");
  if (!why.length) return el("div", { class: "notice good" }, el("b", {}, "Ready. "), "Requests are served, and nothing is degraded.");
  return el("div", { class: "notice" }, el("b", {}, "Ready, but degraded. "), why.length === 1 ? why[0] : el("ul", {}, why.map((each) => el("li", {}, each))));
}

function fleetStates(fleet) {
  const found = new Map(fleet.models.map(({ name }) => [name, "UNAVAILABLE"]));
  for (const { replicas } of fleet.servers) {
    for (const { model, state: its } of replicas) if (its === "READY" || found.get(model) === "UNAVAILABLE") found.set(model, its);
  }
  return [...found.values()];
}

function modelTile(states) {
  const ready = states.filter((each) => each === "READY").length;
  const moving = states.filter((each) => each === "LOADING" || each === "UNLOADING").length;
  return { name: "Models ready", value: count(ready), note: `of ${count(states.length)}${moving ? `, ${count(moving)} loading or unloading` : ""}` };
}

function remember(readings, used) {
  readings.push({ atS: performance.now() / 1000, ...used });
  while (readings.length > 2 && readings[1].atS < readings.at(-1).atS - WINDOW_S) readings.shift();
}

// Rates come from two readings of the day's sums; at midnight (UTC) these begin anew.
function usageTiles(used, readings) {
  const [first, last] = [readings[0], readings.at(-1)];
  const passedS = last ? last.atS - first.atS : 0;
  const rates = OUTCOMES.map(([name, title]) => {
    const more = last ? last[name] - first[name] : 0;
    const rate = passedS > 0 && more >= 0 ? `${decimal(more / passedS)}/s` : "–";
    return { name: `Requests ${title}`, value: rate, note: `${count(used?.[name] ?? 0)} today` };
  });
  const hits = used && used.requests > 0 ? (100 * used.cache_hits) / used.requests : 0;
  return [...rates, { name: "Compute today", value: count(used?.compute_units ?? 0), note: `units; ${decimal(hits)} % from the cache` }];
}

function serverState(server) {
  const doubts = ["ejected", "silent", "draining"].filter((each) => server[`is_${each}`]);
  if (!server.is_up) return state("down");
  return doubts.length ? doubts.map((each) => state(each)) : state("up");
}

function memory({ held_bytes: held, budget_bytes: budget }) {
  if (budget === null) return bytes(held);
  return [`${bytes(held)} of ${bytes(budget)}`, meter(held, budget, held > 0.95 * budget ? "warn" : "")];
}

function serverPanel(servers, notes) {
  if (servers === null) return null;
  return panel("Servers", many(servers.length, "Triton server"),
    ...notes.map((each) => el("div", { class: "body dim" }, each)),
    servers.length ? table("Servers", [
      { title: "Server", kind: "name", cell: ([each]) => each.name },
      { title: "State", cell: ([each]) => serverState(each) },
      { title: "Memory of models", kind: "nowrap", cell: ([each]) => memory(each) },
      { title: "Replicas", kind: "num", cell: ([, replicas]) => count(replicas) },
      { title: "In flight", kind: "num", cell: ([, , inFlight]) => count(inFlight) },
      { title: "Pool", cell: ([each]) => each.pool || el("span", { class: "dim" }, "all") },
    ], servers) : empty("There is no server", "Start one, or name it in the servers file."));
}
