// The console's frame: the key, the views' addresses, and what is said when the gateway is away or refuses.

import { Away, Refusal, call, key, onAway, setKey } from "./api.js";
import { startFeed, stopFeed } from "./feed.js";
import { el, head } from "./dom.js";
import { overview } from "./overview.js";
import { models } from "./models.js";
import { rollouts } from "./rollouts.js";
import { tenants } from "./tenants.js";
import { jobs } from "./jobs.js";
import { events } from "./events.js";
import { audit } from "./audit.js";

const VIEWS = {
  overview: ["Overview", overview], models: ["Models", models], rollouts: ["Rollouts", rollouts], tenants: ["Tenants", tenants],
  jobs: ["Dead jobs", jobs], events: ["Events", events], audit: ["Audit", audit],
};
const at = (id) => document.getElementById(id);
let leave = new AbortController();
let caller = null;

onAway((isAway) => {
  at("banner").replaceChildren(...(isAway ? [el("div", { class: "bad" }, "The gateway does not answer. What you see is of before; this page goes on by itself when it is back.")] : []));
});

async function begin() {
  try {
    caller = await call("whoami");
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askKey(key() ? "This key is wrong, or no longer valid." : "");
    else if (error instanceof Refusal && error.status === 403) askKey(`This key is valid, but ${error.message}.`);
    else {
      at("main").replaceChildren(el("div", { class: "notice bad" }, error instanceof Away ? "Waiting for the gateway." : error.message));
      setTimeout(begin, 2000);
    }
    return;
  }
  at("who").replaceChildren(
    el("span", { class: "narrow-off" }, caller.key_id ? `${caller.tenant} · ${caller.key_id}` : "no authentication"),
    el("span", { class: "narrow-off" }, caller.version),
    ...(key() ? [el("button", { class: "plain", type: "button", onclick: () => { setKey(""); askKey(""); } }, "Sign out")] : []),
  );
  at("nav").hidden = false;
  startFeed();
  open();
}

function askKey(said) {
  leave.abort();
  stopFeed();
  caller = null;
  at("nav").hidden = true;
  at("who").replaceChildren();
  document.title = "Tidegate console";
  const input = el("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-said", placeholder: "tg_…" });
  const told = el("p", { class: "error", id: "key-said", role: "alert" }, said);
  const sent = async (event) => {
    event.preventDefault();
    const given = input.value.trim();
    if (!given) return;
    if (!/^[\x21-\x7e]+$/.test(given)) {
      told.textContent = "A key has letters, digits and signs only.";
      return;
    }
    setKey(given);
    told.textContent = "";
    try {
      await call("whoami");
      await begin();
    } catch (error) {
      setKey("");
      if (error instanceof Refusal && error.status === 401) told.textContent = "This key is wrong, or no longer valid.";
      else if (error instanceof Refusal && error.status === 403) told.textContent = `This key is valid, but ${error.message}.`;
      else told.textContent = error.message;
    }
  };
  setKey("");
  at("main").replaceChildren(el("div", { class: "login" }, el("section", { class: "panel" }, el("form", { class: "body", onsubmit: sent },
    el("h1", {}, "Sign in"),
    el("p", { class: "dim" }, "With an API key or token that has the scope viewer. It is kept in this tab until you close it."),
    el("label", { class: "field" }, "Key", input),
    told,
    el("button", { class: "primary", type: "submit" }, "Sign in")))));
  input.focus();
}

function open() {
  if (caller === null) return;
  leave.abort();
  leave = new AbortController();
  at("dialog").close();
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const [title, view] = Object.hasOwn(VIEWS, name) ? VIEWS[name] : VIEWS.overview;  // any object has a constructor
  at("nav").replaceChildren(...Object.entries(VIEWS).map(([each, [text]]) =>
    el("a", { href: `#/${each}`, "aria-current": text === title ? "page" : null }, text)));
  at("nav").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = `${title} · Tidegate`;
  const place = el("div"), told = el("div", { role: "alert" });
  place.style.display = "contents";
  at("main").replaceChildren(told, place);
  told.hidden = true;
  view({
    place, signal: leave.signal, rest: rest.map(unescaped),
    may: (...rights) => rights.some((each) => caller.rights.includes(each)),
    // What a view shows when a call fails; nothing for a gateway that is away, as the banner says so.
    failed: (error) => {
      if (error instanceof Refusal && error.status === 401) askKey("This key is wrong, or no longer valid.");
      else if (error instanceof Refusal) {
        told.hidden = false;
        told.className = "notice bad";
        told.textContent = error.message;
        if (!place.childElementCount) place.replaceChildren(head(title));
      } else if (!(error instanceof Away)) {
        console.error(error);
        told.hidden = false;
        told.className = "notice bad";
        told.textContent = `This view has a defect: ${error.message}`;
      }
    },
    fine: () => { told.hidden = true; },
  });
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("hashchange", () => { open(); scrollTo(0, 0); if (caller !== null) at("main").focus(); });
at("skip").addEventListener("click", (event) => { event.preventDefault(); at("main").focus(); });
void begin();
