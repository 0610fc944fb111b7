// The API's stream of events, read while the tab is visible, and gone on with after the last event where it breaks off.

import { Refusal, headersOf, key, reached } from "./api.js";

const MOST = 1000;
const listeners = new Set();
let reading = null;

export const feed = { events: [], state: "closed", why: "" };
export function onEvents(told, signal) {
  listeners.add(told);
  signal.addEventListener("abort", () => listeners.delete(told), { once: true });
}

function tell(state, why = "") {
  Object.assign(feed, { state, why });
  listeners.forEach((told) => told());
}

function add(event) {
  feed.events.unshift(event);
  feed.events.length = Math.min(feed.events.length, MOST);
}

let lastId = "";
let hasBacklog = false;

async function read(signal) {
  const answer = await fetch(`events${hasBacklog ? "" : "?backlog=true"}`, {
    headers: headersOf(key(), lastId ? { "Last-Event-ID": lastId } : {}),
    signal, cache: "no-store", redirect: "error",
  });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Refusal(answer.status, body.error ?? `HTTP ${answer.status}`, body.code ?? "");
  }
  hasBacklog = true;
  reached(true);
  tell("live");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    const before = feed.events.length ? feed.events[0] : null;
    parts.forEach(take);
    if (feed.events[0] !== before) tell("live");
  }
}

function take(part) {
  const fields = {};
  for (const line of part.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
    if (name) fields[name] = value;
  }
  if (!fields.data) return;
  if (fields.id) lastId = fields.id;
  const data = JSON.parse(fields.data);
  add({ at: new Date().toISOString(), kind: fields.event ?? "message", id: fields.id ?? "", ...data });
}

async function follow(signal) {
  for (let failures = 0; !signal.aborted;) {
    try {
      await read(signal);
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (error instanceof Refusal) {
        tell("refused", error.message);
        if (error.status === 401 || error.status === 403) return;
      }
    }
    if (signal.aborted) return;
    if (feed.state !== "refused") tell("away");
    await new Promise((done) => { setTimeout(done, Math.min(10_000, 1000 * 2 ** Math.min(failures, 4))); });
  }
}

function look() {
  const isWanted = document.visibilityState === "visible";
  if (isWanted && reading?.signal.aborted) reading = begin();
  else if (!isWanted) reading?.abort();
}

function begin() {
  const made = new AbortController();
  void follow(made.signal);
  return made;
}

export function startFeed() {
  stopFeed();
  reading = begin();
  document.addEventListener("visibilitychange", look);
}

export function stopFeed() {
  document.removeEventListener("visibilitychange", look);
  reading?.abort();
  reading = null;
  Object.assign(feed, { events: [], state: "closed", why: "" });
  lastId = "";
  hasBacklog = false;
}
