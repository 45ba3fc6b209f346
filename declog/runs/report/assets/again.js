// Reloads the page of a running run: its file is written again and again, and no server is asked.

const REST = 3000; // milliseconds without input before the page may reload
const LOAD = 60_000; // milliseconds that the browser has to load the page: an earlier reload would begin anew
const MOST_WAITS = 8; // while the file stays unchanged, the page waits up to so many periods
const USES = ["keydown", "input", "pointerdown", "pointermove", "pointerup", "pointercancel", "wheel"];

let touched = -Infinity;
let pressed = false; // whether a button of the pointer is down: the reader drags

const before = history.state?.declog; // the state from before the reload: {made, waits, reader}

/** Reload the page each period, unless the reader is using it; keep the state that `readerState` returns. */
function openAgain(readerState) {
  if (before) history.replaceState(null, "");
  if (REPORT.every == null) return;
  history.scrollRestoration = "manual";
  const waits = before?.made === REPORT.made ? Math.min(MOST_WAITS, before.waits * 2) : 1;
  for (const kind of USES) addEventListener(kind, noteUse, { passive: true });
  let due = performance.now() + 1000 * REPORT.every * waits;
  let isLoading = false;
  setInterval(() => {
    showAge();
    const isDue = performance.now() >= due && isResting();
    if (isDue || isLoading) history.replaceState({ declog: { made: REPORT.made, waits, reader: readerState() } }, "");
    if (!isDue) return;
    isLoading = true;
    due = performance.now() + LOAD;
    location.reload();
  }, 250);
  showAge();
}

function noteUse({ buttons }) {
  touched = performance.now();
  if (buttons != null) pressed = buttons > 0;
}

/** Whether the page may reload: it is visible, and the reader does not type, drag, move or select. */
const isResting = () => performance.now() - touched > REST && !pressed && document.visibilityState === "visible" && getSelection().isCollapsed;

/** Show the age of the file, if the page has a place for it. */
function showAge() {
  const age = $("#age");
  if (age) age.textContent = `, ${duration(Math.max(0, Date.now() / 1000 - REPORT.made))} ago`;
}
