// A question before something is changed, which names what it is about.

import { change } from "./api.js";
import { el } from "./dom.js";

// Asks, and makes the change; resolves to whether it was made.
export function confirmed({ title, advice, verb, path, isDanger = false }) {
  const dialog = document.getElementById("dialog");
  return new Promise((done) => {
    let wasMade = false;
    const told = el("p", { class: "error", role: "alert" });
    const reason = el("input", { type: "text", maxlength: "150", placeholder: "optional, for the audit log" });
    const go = el("button", { class: isDanger ? "plain danger" : "primary", type: "submit" }, verb);
    const stop = el("button", { class: "plain", type: "button", onclick: () => dialog.close() }, "Cancel");
    const sent = async (event) => {
      event.preventDefault();
      go.disabled = true;
      told.textContent = "";
      try {
        await change(path, reason.value.trim());
        wasMade = true;
        dialog.close();
      } catch (error) {
        told.textContent = error.message;
        go.disabled = false;
      }
    };
    dialog.replaceChildren(el("form", { onsubmit: sent },
      el("h2", { id: "dialog-title" }, title), el("p", { class: "dim" }, advice),
      el("label", { class: "field" }, "Reason", reason), told, el("div", { class: "row end" }, stop, go)));
    dialog.addEventListener("close", () => done(wasMade), { once: true });
    dialog.showModal();
    stop.focus();
  });
}
