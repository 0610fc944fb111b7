// Events as they happen, and those that the gateway has kept.

import { el, empty, head, show, state, table, when } from "./dom.js";
import { feed, onEvents } from "./feed.js";

const MOST = 200;
const TONES = { loaded: "good", up: "good", answering: "good", readmitted: "good", promoted: "good", failed: "bad", lost: "bad", down: "bad", ejected: "bad", rolled_back: "bad", aborted: "bad", silent: "warn", gap: "warn", dropped: "warn" };
const WORDS = { live: ["Live", "good"], away: ["Reconnecting", "warn"], closed: ["Connecting", "warn"], refused: ["Refused", "bad"] };
let text = "";

const about = (each) => [each.route, each.model, each.server].filter(Boolean).join(" · ");
const detail = (each) => [each.what, each.reason, each.by ? `by ${each.by}` : ""].filter(Boolean).join(" · ");

export const eventTable = (rows) => table("Events", [
  { title: "At", kind: "nowrap", cell: (each) => when(each.at) },
  { title: "Event", cell: (each) => state(each.kind.replace("_", " "), TONES[each.kind.split(".").at(-1)] ?? "") },
  { title: "About", kind: "name", cell: (each) => about(each) },
  { title: "Details", kind: "text", cell: (each) => detail(each) },
], rows);

export function events({ place, signal }) {
  const filter = el("input", { type: "search", placeholder: "Filter events", "aria-label": "Filter events", oninput: () => { text = filter.value; draw(); } });
  filter.value = text;
  const live = el("span", { role: "status" }), found = el("div");
  found.style.display = "contents";
  const draw = () => {
    const wanted = text.trim().toLowerCase();
    const rows = feed.events.filter((each) => !wanted || `${each.kind} ${about(each)} ${detail(each)}`.toLowerCase().includes(wanted)).slice(0, MOST);
    show(live, feed.state, () => state(...WORDS[feed.state]));
    show(found, [rows, feed.state === "refused" ? feed.why : ""], () => [
      feed.state === "refused" ? el("div", { class: "notice bad" }, feed.why) : null,
      el("section", { class: "panel", "aria-label": "Events" }, rows.length ? eventTable(rows)
        : feed.events.length ? empty("No event fits the filter", "Change the text above.") : empty("Nothing has happened yet", "Loads, rollouts and servers that come and go appear here by themselves.")),
    ]);
  };
  place.append(head("Events", live, filter), found);
  onEvents(draw, signal);
  draw();
}
