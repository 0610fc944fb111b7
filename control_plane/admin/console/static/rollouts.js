// Routes with their weights, and the last rollout of each with the evidence of its gates.

import { get, poll } from "./api.js";
import { confirmed } from "./confirm.js";
import { count, decimal, el, empty, head, many, meter, panel, percent, seconds, show, split, state, table, when } from "./dom.js";

const WHOLE = 10_000;
const UNDER_WAY = ["shadow", "canary", "baking", "promoting"];
const TONES = { promoted: "good", rolled_back: "bad", aborted: "bad" };
const ADVICE = {
  pause: "Weights stay as they are until it is resumed. The gates still roll it back.", resume: "It goes on from the present step.",
  abort: "All requests go to the present model again. This cannot be undone.",
};

export function rollouts({ place, signal, failed, fine, may }) {
  const act = async (verb, route) => {
    const title = `${verb[0].toUpperCase()}${verb.slice(1)} the rollout of ${route}?`;
    if (await confirmed({ title, advice: ADVICE[verb], verb: title.split(" ")[0], isDanger: verb === "abort", path: `rollouts/${encodeURIComponent(route)}/${verb}` })) askNow();
  };
  const askNow = poll(async () => {
    const [routes, found] = [await get("routes", signal), await get("rollouts", signal)];
    found.sort((one, other) => UNDER_WAY.includes(other.phase) - UNDER_WAY.includes(one.phase) || other.entered_s - one.entered_s);
    show(place, [routes, found], () => [
      head("Rollouts", many(found.filter((each) => UNDER_WAY.includes(each.phase)).length, "rollout under way", "rollouts under way")),
      ...(found.length ? found.map((each) => rollout(each, may("operator") ? act : null))
        : [el("section", { class: "panel" }, empty("No route has had a rollout", el("span", {}, "Begin one: ", el("code", {}, "tidegate rollouts start ROUTE --to MODEL"))))]),
      panel("Routes", many(routes.length, "route"), routes.length ? routeTable(routes, found)
        : empty("There is no route", "Callers use the models' own names. A route is a public name whose model can change beneath it.")),
    ]);
    fine();
  }, signal, { failed });
}

const named = (model, version) => (version ? `${model}@${version}` : model);

function rollout(it, act) {
  const isOpen = UNDER_WAY.includes(it.phase);
  const step = it.steps[it.step];
  const button = (verb, kind = "plain") => el("button", { class: kind, type: "button", "data-focus": `${verb} ${it.route}`, onclick: () => void act(verb, it.route) }, `${verb[0].toUpperCase()}${verb.slice(1)}`);
  const word = it.phase.replace("_", " ");
  return panel(it.route, [state(it.is_paused ? `${word}, paused` : word, it.is_paused ? "warn" : TONES[it.phase] ?? (isOpen ? "warn" : ""))],
    el("div", { class: "body" },
      split([{ weight: WHOLE - it.weight }, { weight: it.weight, next: true }]),
      el("div", { class: "legend" },
        el("span", {}, `${named(it.stable, it.stable_version)}: ${percent(WHOLE - it.weight)}`), el("span", {}, el("b", {}, `${named(it.model, it.version)}: ${percent(it.weight)}`))),
      it.reason || it.doubt ? el("p", {}, it.reason || `It holds: ${it.doubt}`) : null,
      isOpen && step ? el("p", { class: "dim" }, progress(it, step)) : null,
      isOpen && act && it.phase !== "promoting" ? el("div", { class: "row" }, it.is_paused ? button("resume") : button("pause"), button("abort", "plain danger")) : null),
    it.gates.length ? table(`Gates of ${it.route}`, [
      { title: "Gate", cell: (each) => each.name },
      { title: "Evidence that the next model is worse", kind: "nowrap", cell: (each) => evidence(each) },
      { title: "Next: bad of all", kind: "num", cell: (each) => `${count(each.canary_bad)} of ${count(each.canary)}` },
      { title: "Present: bad of all", kind: "num", cell: (each) => `${count(each.stable_bad)} of ${count(each.stable)}` },
    ], it.gates) : null,
    it.events.length ? el("details", { class: "body", "data-key": it.route }, el("summary", {}, many(it.events.length, "step so far", "steps so far")),
      table(`Steps of ${it.route}`, [
        { title: "At", kind: "nowrap", cell: (each) => when(each.at_s) }, { title: "What", kind: "text", cell: (each) => each.what },
        { title: "Weight", kind: "num", cell: (each) => percent(each.weight) }, { title: "By", cell: (each) => each.by },
      ], [...it.events].reverse())) : null);
}

function progress(it, step) {
  const needed = it.phase === "shadow" ? it.shadow?.samples ?? 0 : step.samples;
  const title = it.phase === "shadow" ? "Shadow" : `Step ${it.step + 1} of ${it.steps.length}${step.name ? ` (${step.name})` : ""}`;
  return `${title}: ${count(it.step_samples)} of ${count(needed)} samples${it.left_s === null ? "" : `, about ${seconds(Math.ceil(it.left_s))} left`}`;
}

function evidence(gate) {
  const isOver = gate.log_evidence >= gate.fails_at;
  return [`${decimal(gate.log_evidence)} of ${decimal(gate.fails_at)}${isOver ? ", fails" : ""}`, meter(gate.log_evidence, gate.fails_at, isOver ? "bad" : gate.log_evidence > gate.fails_at / 2 ? "warn" : "")];
}

function routeTable(routes, found) {
  const underWay = new Map(found.filter((each) => UNDER_WAY.includes(each.phase)).map((each) => [each.route, each]));
  const arms = (route) => {
    const its = underWay.get(route.name);
    const targets = (its ? [{ model: its.model, version: its.version, weight: its.weight }] : route.targets ?? []).filter((each) => each.weight > 0);
    return [{ model: route.model, version: route.version, weight: WHOLE - targets.reduce((sum, each) => sum + each.weight, 0) }, ...targets.map((each) => ({ ...each, next: true }))];
  };
  return table("Routes", [
    { title: "Route", kind: "name", cell: (each) => each.name },
    { title: "Models", kind: "name", cell: (each) => arms(each).length === 1 ? named(each.model, each.version)
      : [split(arms(each)), arms(each).map((arm) => el("div", {}, `${named(arm.model, arm.version)}: ${percent(arm.weight)}`))] },
    { title: "Sticks to", cell: (each) => each.sticky || el("span", { class: "dim" }, "contents") },
    { title: "Pool", cell: (each) => each.pool || el("span", { class: "dim" }, "any") },
    { title: "Deadline", kind: "num", cell: (each) => each.deadline_s === null ? el("span", { class: "dim" }, "default") : seconds(each.deadline_s) },
    { title: "Open to", kind: "name", cell: (each) => each.tenants === null ? el("span", { class: "dim" }, "all tenants") : each.tenants.join(", ") },
  ], routes);
}
