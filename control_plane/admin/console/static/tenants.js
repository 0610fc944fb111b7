// Tenants with their limits, and what each has used.

import { get, poll } from "./api.js";
import { count, decimal, el, empty, head, many, panel, show, table } from "./dom.js";

const PERIODS = [["today", "Today"], ["7d", "7 days"], ["30d", "30 days"]];
let since = "7d";

export function tenants({ place, signal, failed, fine }) {
  const period = el("select", { "aria-label": "Period", onchange: () => { since = period.value; askNow(); } }, PERIODS.map(([value, name]) => el("option", { value }, name)));
  period.value = since;
  const found = el("div");
  found.style.display = "contents";
  const askNow = poll(async () => {
    const [all, byTenant, byModel] = [await get("tenants", signal), await get(`usage?by=tenant&since=${since}`, signal), await get(`usage?by=model&since=${since}`, signal)];
    const used = new Map(byTenant.rows.map((each) => [each.tenant, each]));
    const known = new Set(all.map((each) => each.name));
    const rows = [...all, ...byTenant.rows.filter((each) => !known.has(each.tenant)).map((each) => ({ name: each.tenant, isGone: true }))];
    const data = rows.map((each) => ({ ...each, used: used.get(each.name) ?? null }));
    if (!found.isConnected) place.replaceChildren(head("Tenants and usage", null, period), found);
    show(found, [data, byModel.rows], () => [
      panel("Tenants", many(all.length, "tenant"), data.length ? tenantTable(data)
        : empty("There is no tenant", el("span", {}, "Make one: ", el("code", {}, "tidegate tenants set NAME")))),
      panel("Usage by model", null, byModel.rows.length ? table("Usage by model", [{ title: "Model", kind: "name", cell: (each) => each.model }, ...usageColumns((each) => each)],
        [...byModel.rows].sort((one, other) => other.compute_units - one.compute_units).slice(0, 100))
        : empty("Nothing was used in this time", "Requests are counted here within seconds.")),
    ]);
    fine();
  }, signal, { failed, everyMs: 5000 });
}

const limit = (value) => (value === null || value === undefined ? el("span", { class: "dim" }, "none") : decimal(value));
const costs = (row) => Object.entries(row?.costs ?? {}).map(([currency, cost]) => `${cost.toFixed(2)} ${currency}`).join(", ");

const usageColumns = (of) => [
  { title: "Requests", kind: "num", cell: (each) => count(of(each)?.requests ?? 0) },
  { title: "Failed", kind: "num", cell: (each) => count(of(each)?.failed ?? 0) },
  { title: "Refused", kind: "num", cell: (each) => count(of(each)?.refused ?? 0) },
  { title: "Cached", kind: "num", cell: (each) => count(of(each)?.cache_hits ?? 0) },
  { title: "Compute units", kind: "num", cell: (each) => count(of(each)?.compute_units ?? 0) },
  { title: "Cost", kind: "num", cell: (each) => costs(of(each)) },
];

const tenantTable = (data) => table("Tenants", [
  { title: "Tenant", kind: "name", cell: (each) => each.name === "" ? el("span", { class: "dim" }, "without a tenant") : el("span", {}, each.name, each.isGone ? el("span", { class: "dim" }, " (deleted)") : null) },
  ...usageColumns((each) => each.used),
  { title: "Requests/s", kind: "num", cell: (each) => limit(each.requests_per_s) },
  { title: "In flight", kind: "num", cell: (each) => limit(each.concurrency) },
  { title: "Units a day", kind: "num", cell: (each) => limit(each.daily_compute_units) },
  { title: "Weight", kind: "num", cell: (each) => decimal(each.weight) },
  { title: "Priority", kind: "num", cell: (each) => count(each.priority) },
], data);
