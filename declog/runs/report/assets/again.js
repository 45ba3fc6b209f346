// The page of what goes on: its file is written again, and the page is opened again without a question to any server.

const REST = 3000; // milliseconds after a key, a word typed, or a move of the pointer or the wheel
const LOAD = 60_000; // milliseconds that the browser has to open the page: asked sooner, it would begin anew
const MOST_WAITS = 8; // how much longer than its period a page waits whose file stays as it is
const USES = ["keydown", "input", "pointerdown", "pointermove", "pointerup", "pointercancel", "wheel"];

let touched = -Infinity;
let pressed = false; // a button of the pointer is down: somebody drags

const before = history.state?.declog; // of the page that opened itself again: {made, waits, reader}

/** Open the page again in a while, with what `readerState` says then, unless somebody is just using it. */
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

/** Whether nobody uses the page: it is in view, and nothing is typed, dragged, moved or selected in it. */
const isResting = () => performance.now() - touched > REST && !pressed && document.visibilityState === "visible" && getSelection().isCollapsed;

/** How old the file is, where the page says so. */
function showAge() {
  const age = $("#age");
  if (age) age.textContent = `, ${duration(Math.max(0, Date.now() / 1000 - REPORT.made))} ago`;
}
