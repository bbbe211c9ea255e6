"use strict";
// Times, live parts, selections and copies. The pages work without this script, except live parts.

const SILENT_MS = 25_000; // the console sends something at least every ten seconds
const RETRY_MS = 2_000;
const LOST = "The connection to the console is lost: this page shows an old state. Trying again …";
const SIGNED_OUT =
  "Your session has ended, or the console was started again. Open the start URL that it printed last, or reload this page to sign in.";
const IN_UTC = "instep-times-in-utc";

function report(text) {
  const line = document.getElementById("connection");
  if (!line) return;
  line.hidden = !text;
  line.textContent = text;
}

// A session that has ended leads to the sign-in page, which must not become a part of this page.
function isRefused(answer) {
  return answer.status === 401 || answer.status === 403 || answer.type === "opaqueredirect";
}

// --- times: local or UTC ---------------------------------------------------------------------------

function showsUtc() {
  try {
    return localStorage.getItem(IN_UTC) !== null;
  } catch {
    return false; // the browser keeps nothing for this site
  }
}

function localTime(at) {
  const pad = (number) => String(number).padStart(2, "0");
  return (
    `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}` +
    ` ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`
  );
}

function showTimes(root) {
  const inUtc = showsUtc();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (isNaN(at)) continue;
    const utc = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    element.textContent = inUtc ? utc : localTime(at);
    element.title = inUtc ? `${localTime(at)} here` : utc;
  }
}

function offerUtc(button) {
  const describe = () => (button.textContent = showsUtc() ? "Show local times" : "Show UTC");
  button.hidden = false;
  describe();
  button.addEventListener("click", () => {
    if (showsUtc()) localStorage.removeItem(IN_UTC);
    else localStorage.setItem(IN_UTC, "1");
    describe();
    showTimes(document);
  });
}

// --- changing a part in place ----------------------------------------------------------------------

// Return the next node without an id that can become the wanted one.
function similar(first, wanted) {
  let node = first;
  while (node && (node.id || node.nodeName !== wanted.nodeName)) node = node.nextSibling;
  return node;
}

// Change the children of a node into those of another. Nodes that stay are the same objects afterwards;
// an element with an id stays wherever it has moved to.
function changeChildren(old, fresh) {
  const named = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
  let next = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const found = wanted.id ? named.get(wanted.id) : similar(next, wanted);
    if (!found) {
      old.insertBefore(wanted, next);
      continue;
    }
    if (found === next) next = next.nextSibling;
    else old.insertBefore(found, next);
    changeNode(found, wanted);
  }
  while (next) {
    const following = next.nextSibling;
    next.remove();
    next = following;
  }
}

function changeNode(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  changeChildren(old, fresh);
}

// Show new content. Nodes that have moved lose focus, selection and scroll position: give them back.
function update(area, text) {
  const fresh = document.createElement("template");
  fresh.innerHTML = text;
  showTimes(fresh.content);
  const focused = document.activeElement;
  const selection = getSelection();
  const { anchorNode, anchorOffset, focusNode, focusOffset, isCollapsed } = selection;
  const scrolled = [...area.querySelectorAll(".wide, pre")].map((one) => [one, one.scrollLeft, one.scrollTop]);
  changeChildren(area, fresh.content);
  for (const [one, left, top] of scrolled) one.scrollTo(left, top);
  if (focused !== document.activeElement && area.contains(focused)) focused.focus({ preventScroll: true });
  if (isCollapsed || !area.contains(anchorNode) || !area.contains(focusNode)) return;
  const within = (node, offset) => Math.min(offset, node.data ? node.data.length : node.childNodes.length);
  selection.setBaseAndExtent(
    anchorNode, within(anchorNode, anchorOffset), focusNode, within(focusNode, focusOffset),
  );
}

// --- live parts ------------------------------------------------------------------------------------

// One stream per page. A tab in the background closes it; it is opened again when the tab is shown.
function follow(area) {
  let source = null;
  let watchdog = 0;
  let ended = false;
  let paused = false;
  let place = ""; // behind the last record that was shown, if the stream can be continued
  const appends = area.dataset.append !== undefined;
  const problem = document.querySelector("[data-problem]") || area;

  function open() {
    if (source || ended || paused || document.hidden) return;
    const url = new URL(area.dataset.live, location.href);
    if (place) url.searchParams.set("after", place);
    source = new EventSource(url);
    heard();
    source.onopen = () => {
      heard();
      report("");
    };
    source.addEventListener("ping", heard);
    source.addEventListener("again", () => {
      close();
      open();
    });
    source.addEventListener("problem", (message) => {
      heard();
      update(problem, message.data);
    });
    source.addEventListener("part", (message) => {
      heard();
      place = message.lastEventId || place;
      show(message.data);
    });
    source.onerror = () => {
      report(LOST);
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        askWhy();
      }
    };
  }

  function show(text) {
    if (!appends) {
      update(area, text);
      return;
    }
    problem.replaceChildren();
    area.insertAdjacentHTML("beforeend", text);
    while (area.childElementCount > Number(area.dataset.append)) area.firstElementChild.remove();
    showTimes(area);
  }

  // A connection that is lost without a word stays open for the browser: silence is the only sign.
  function heard() {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      report(LOST);
      close();
      open();
    }, SILENT_MS);
  }

  // A browser says of a refused stream only that it is closed. Whoever is not admitted need not try again.
  async function askWhy() {
    const asking = new AbortController();
    setTimeout(() => asking.abort(), SILENT_MS);
    try {
      const answer = await fetch(area.dataset.live, { redirect: "manual", signal: asking.signal });
      if (isRefused(answer)) {
        ended = true;
        report(SIGNED_OUT);
        return;
      }
    } catch {
      // the console does not answer at all: try again
    } finally {
      asking.abort();
    }
    setTimeout(open, RETRY_MS);
  }

  function close() {
    clearTimeout(watchdog);
    if (source) source.close();
    source = null;
  }

  function offerPause(button) {
    const state = button.parentElement.querySelector("[role=status]");
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? "Continue updates" : "Pause updates";
      state.textContent = paused ? `Paused at ${localTime(new Date())}: this page shows the state of then.` : "";
      if (!paused) return open();
      close();
      if (!ended) report("");
    });
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  const button = document.querySelector("[data-pause]");
  if (button) offerPause(button);
  open();
}

// --- links, commands and selections ----------------------------------------------------------------

// A link that shows its page's content in place. Without this script, it opens the page.
async function showInPlace(link) {
  const area = document.getElementById(link.dataset.into);
  area.dataset.shown = link.href;
  let answer;
  try {
    answer = await fetch(link.href, { headers: { "x-fragment": "true" }, redirect: "manual" });
  } catch {
    report("The console does not answer. Is it still running?");
    return;
  }
  if (isRefused(answer)) {
    location.reload(); // leads to the sign-in page, and from there back to this page
    return;
  }
  const text = await answer.text();
  if (area.dataset.shown !== link.href) return; // another link was followed meanwhile
  area.innerHTML = text;
  showTimes(area);
  area.scrollIntoView();
}

// Without HTTPS, browsers have no clipboard API for pages; the old way needs a selection.
function copyOldWay(text) {
  const give = (event) => {
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", give);
  try {
    return document.execCommand("copy");
  } finally {
    document.removeEventListener("copy", give);
  }
}

async function copy(button) {
  const [shown, state] = ["code", "[role=status]"].map((one) => button.parentElement.querySelector(one));
  getSelection().selectAllChildren(shown);
  let copied = true;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    copied = copyOldWay(button.dataset.copy);
  }
  state.textContent = copied ? "Copied" : "Selected: copy it with the keyboard or the menu";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  const link = event.target.closest("a[data-into]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  showInPlace(link);
});

// A checkbox that selects all others of its form.
document.addEventListener("change", (event) => {
  const all = event.target.closest("[data-all]");
  if (!all) return;
  for (const box of all.form.querySelectorAll("input[type=checkbox]")) box.checked = all.checked;
});

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  const button = document.querySelector("[data-utc]");
  if (button) offerUtc(button);
  const area = document.querySelector("[data-live]");
  if (area) follow(area);
});
