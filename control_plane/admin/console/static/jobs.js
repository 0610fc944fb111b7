// Dead jobs: those whose every attempt has failed.

import { getOr, poll } from "./api.js";
import { count, el, empty, head, show, table, when } from "./dom.js";

export function jobs({ place, signal, failed, fine }) {
  poll(async () => {
    const found = await getOr("dead-jobs?limit=200", signal, null);
    show(place, found, () => [
      head("Dead jobs", "whose every attempt has failed; the newest first, 200 at most"),
      el("section", { class: "panel", "aria-label": "Dead jobs" }, found === null ? empty("Jobs are switched off here", "Set TIDEGATE_JOBS to accept requests that are answered later.")
        : found.length ? table("Dead jobs", [
          { title: "Ended", kind: "nowrap", cell: (each) => when(each.ended_at) },
          { title: "Model", kind: "name", cell: (each) => each.model },
          { title: "Tenant", kind: "name", cell: (each) => each.tenant },
          { title: "Attempts", kind: "num", cell: (each) => count(each.attempts) },
          { title: "Last error", kind: "text", cell: (each) => each.error },
          { title: "Job", kind: "mono", cell: (each) => each.id },
        ], found) : empty("No job is dead", el("span", {}, "One that is can be queued anew: ", el("code", {}, "tidegate jobs dead requeue JOB")))),
    ]);
    fine();
  }, signal, { failed });
}
