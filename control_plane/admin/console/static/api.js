// Calls to the admin API with the caller's key, which is kept for this tab only and never goes into an address.

const KEY = "tidegate.key";
const TIMEOUT_MS = 20_000;
const listeners = new Set();
let isAway = false;

export class Refusal extends Error {
  constructor(status, said, code) {
    super(said);
    this.status = status;
    this.code = code;
  }
}
export class Away extends Error {}

export const key = () => sessionStorage.getItem(KEY) ?? "";
export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

// Calls `told(isAway)` whenever the gateway goes away or is back.
export const onAway = (told) => listeners.add(told);

export function reached(is) {
  if (isAway === !is) return;
  isAway = !is;
  listeners.forEach((told) => told(isAway));
}

export function headersOf(text, more = {}) {
  return text ? { Authorization: `Bearer ${text}`, ...more } : more;
}

// Returns the answer. Raises Refusal (the API's own words), Away, or AbortError.
export async function call(path, { method = "GET", signal, more = {}, as = key(), timeoutMs = TIMEOUT_MS } = {}) {
  const limit = AbortSignal.timeout(timeoutMs);
  let answer, text;
  try {
    answer = await fetch(path, {
      method,
      headers: headersOf(as, { Accept: "application/json", ...more }),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      redirect: "error",
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (method === "GET") reached(false);
    throw new Away(limit.aborted ? `no answer within ${timeoutMs / 1000} s` : "the gateway does not answer");
  }
  reached(true);
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new Refusal(answer.status, `no JSON came back (HTTP ${answer.status}): is something else on this port?`, "");
  }
  if (!answer.ok) throw new Refusal(answer.status, body?.error ?? `HTTP ${answer.status}`, body?.code ?? "");
  return body;
}

export const get = (path, signal) => call(path, { signal });

// As `get`, but `otherwise` where there is no such thing here, such as a fleet.
export async function getOr(path, signal, otherwise) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) return otherwise;
    throw error;
  }
}

export const change = (path, reason) =>
  call(path, { method: "POST", timeoutMs: 600_000, more: reason ? { "X-Tidegate-Reason": encodeURIComponent(reason) } : {} });

const pause = (ms, signal) => new Promise((done) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});

const visible = (signal) => document.visibilityState === "visible" ? null : new Promise((done) => {
  const look = () => {
    if (document.visibilityState === "visible" || signal.aborted) {
      document.removeEventListener("visibilitychange", look);
      done();
    }
  };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", look, { once: true });
});

// Calls `ask` again and again until `signal` is aborted, one at a time, while the tab is visible. What takes the gateway long
// is asked for less often: a twentieth of the time at most. Returns a function that has it ask at once.
export function poll(ask, signal, { everyMs = 3000, failed = () => {} } = {}) {
  let wake = () => {}, isWanted = false;
  const run = async () => {
    while (!signal.aborted) {
      await visible(signal);
      if (signal.aborted) return;
      isWanted = false;
      const beganMs = performance.now();
      try {
        await ask();
      } catch (error) {
        if (signal.aborted) return;
        failed(error);
      }
      const restMs = isAway ? 2000 : Math.max(everyMs, Math.min(60_000, 20 * (performance.now() - beganMs)));
      if (isWanted) continue;
      const nap = new AbortController();
      const woken = new Promise((done) => { wake = done; });
      await Promise.race([pause(restMs, AbortSignal.any([signal, nap.signal])), woken]);
      nap.abort();
    }
  };
  void run();
  return () => { isWanted = true; wake(); };
}
