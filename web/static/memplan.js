// What the pages do beyond links and forms. Everything here has a way without
// it: the theme follows the system, keys have buttons, copying has selection.
(() => {
  "use strict";
  const root = document.documentElement;
  const remembered = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const remember = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private window */ } };
  const byID = (id) => document.getElementById(id);

  const themes = ["auto", "light", "dark"];
  const paint = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  let theme = themes.includes(remembered("theme")) ? remembered("theme") : "auto";
  paint(theme); // before the first paint: this file is not deferred
  root.classList.add("scripted");

  function themeButton() {
    const button = byID("theme");
    const name = () => {
      button.textContent = theme[0].toUpperCase() + theme.slice(1);
      button.setAttribute("aria-label", `Colour theme: ${theme}`);
    };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      paint(theme);
      remember("theme", theme);
      name();
    });
  }

  function keySheet() {
    const button = byID("keys-button");
    button.hidden = false;
    button.addEventListener("click", () => byID("keys").showModal());
    const on = byID("keys-on");
    on.checked = remembered("keys") !== "off";
    on.addEventListener("change", () => remember("keys", on.checked ? "on" : "off"));
  }

  const typing = (el) => el.closest("input:not([type=checkbox]), select, textarea, [contenteditable], dialog[open]");
  const keys = {
    "/": () => document.querySelector("input[list=models]")?.focus(),
    "?": () => byID("keys").showModal(),
    s: () => byID("save")?.requestSubmit(),
    u: () => byID("unit")?.click(),
    c: () => copy(location.href),
  };

  document.addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.shiftKey && field.type === "number" && /^Arrow(Up|Down)$/.test(event.key)) {
      const now = Number(field.value || field.placeholder) || 1;
      field.value = event.key === "ArrowUp" ? now * 2 : Math.max(1, Math.floor(now / 2));
      field.dispatchEvent(new Event("input", { bubbles: true }));
      event.preventDefault();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || !byID("keys-on").checked || typing(field)) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      if (button) {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      }
    } catch { /* not allowed here: the text can be selected */ }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(byID(button.dataset.copy).textContent, button);
    const toField = event.target.closest("a[href^='#f-']");
    if (toField) {
      event.preventDefault();
      const field = byID(toField.hash.slice(1));
      unfold(field);
      field?.focus();
    }
  });

  const unfold = (el) => { for (let d = el?.closest("details"); d; d = d.parentElement.closest("details")) d.open = true; };

  // A partial answer brings the errors of all fields in one box: they move to
  // their places, and what stood there before goes.
  function distribute() {
    const box = byID("wrongs");
    if (!box?.hasChildNodes()) return;
    for (const slot of document.querySelectorAll(".wrong")) slot.replaceChildren();
    for (const found of [...box.children]) byID(found.dataset.slot)?.append(...found.childNodes);
    box.replaceChildren();
  }

  // After a part of the page was replaced: buttons that need scripts appear, a
  // field is marked wrong as long as its place for errors holds one.
  function refresh() {
    distribute();
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
    for (const slot of document.querySelectorAll(".wrong[id^='e-f-']")) {
      const field = byID(slot.id.slice(2));
      if (field) field.toggleAttribute("aria-invalid", slot.childElementCount > 0);
      if (slot.childElementCount > 0) unfold(slot);
    }
  }

  // Parts that change by themselves: the server sends them anew. What someone is
  // about to press or has opened is left alone until they are done.
  function live(part) {
    const events = new EventSource(part.dataset.live);
    let latest = null;
    const show = () => {
      if (latest !== null) part.innerHTML = latest;
      latest = null;
    };
    events.addEventListener("message", (event) => {
      latest = event.data;
      if (!part.contains(document.activeElement) && !part.querySelector("details[open]")) show();
    });
    events.addEventListener("end", () => {
      events.close();
      show();
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    keySheet();
    refresh();
    for (const part of document.querySelectorAll("[data-live]:not([data-live=''])")) live(part);
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.target?.id === "plan") byID("plan-form")?.reset(); // a link changed the fields
    refresh();
  });
})();
