"use strict";
// Local times, live parts, selections and copies. The pages work without this script, except live parts.

function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (isNaN(at)) continue;
    const pad = (number) => String(number).padStart(2, "0");
    element.textContent =
      `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}` +
      ` ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  }
}

function report(text) {
  const line = document.getElementById("connection");
  if (!line) return;
  line.hidden = !text;
  line.textContent = text;
}

// One stream per page. A tab in the background closes it; it is opened again when the tab is shown.
function follow(area) {
  let source = null;
  let ended = false;
  let place = ""; // behind the last record that was shown, if the stream can be continued
  const appends = area.dataset.append !== undefined;

  function open() {
    if (source || ended || document.hidden) return;
    const url = new URL(area.dataset.live, location.href);
    if (place) url.searchParams.set("after", place);
    source = new EventSource(url);
    source.onopen = () => report("");
    source.addEventListener("part", (message) => {
      place = message.lastEventId || place;
      if (appends) {
        area.insertAdjacentHTML("beforeend", message.data);
        while (area.childElementCount > Number(area.dataset.append)) area.firstElementChild.remove();
        showLocalTimes(area);
      } else {
        htmx.swap(area, message.data, { swapStyle: "innerHTML" });
        showLocalTimes(area);
      }
    });
    source.onerror = () => {
      report("The connection to the console is lost: this page shows an old state. Trying again …");
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        askWhy();
      }
    };
  }

  // A browser says of a refused stream only that it is closed. Whoever is not admitted need not try again.
  async function askWhy() {
    const asking = new AbortController();
    try {
      const answer = await fetch(area.dataset.live, { redirect: "manual", signal: asking.signal });
      if (answer.status === 401 || answer.status === 403 || answer.type === "opaqueredirect") {
        ended = true;
        report("Your session has ended, or the console was started again. Open the start URL that it printed last, or reload this page to sign in.");
        return;
      }
    } catch {
      // the console does not answer at all: try again
    } finally {
      asking.abort();
    }
    setTimeout(open, 2000);
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(button.dataset.copy).then(
    () => { button.textContent = "Copied"; },
    () => { button.textContent = "Select it and copy by hand"; },
  );
});

// A checkbox that selects all others of its form.
document.addEventListener("change", (event) => {
  const all = event.target.closest("[data-all]");
  if (!all) return;
  for (const box of all.form.querySelectorAll("input[type=checkbox]")) box.checked = all.checked;
});

document.addEventListener("htmx:afterSwap", (event) => showLocalTimes(event.target));
document.addEventListener("htmx:sendError", () => report("The console does not answer. Is it still running?"));
document.addEventListener("htmx:beforeSwap", (event) => { event.detail.shouldSwap = true; });

document.addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  const area = document.querySelector("[data-live]");
  if (area) follow(area);
});
