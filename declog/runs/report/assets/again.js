// The page of what goes on: its file is written again, and the page is opened again without a question to any server.

const REST = 3000; // milliseconds after a key, a click or a turn of the wheel
const MOST_WAITS = 8; // how much longer than its period a page waits whose file stays as it is

let touched = -Infinity;

const before = history.state?.declog; // of the page that opened itself again: {made, waits, reader}

/** Open the page again in a while, with what `readerState` says then, unless somebody is just using it. */
function openAgain(readerState) {
  if (before) history.replaceState(null, "");
  if (REPORT.every == null) return;
  history.scrollRestoration = "manual";
  const waits = before?.made === REPORT.made ? Math.min(MOST_WAITS, before.waits * 2) : 1;
  for (const kind of ["keydown", "pointerdown", "wheel"]) addEventListener(kind, () => (touched = performance.now()), { passive: true });
  const due = performance.now() + 1000 * REPORT.every * waits;
  setInterval(() => {
    showAge();
    const resting = performance.now() - touched > REST && document.visibilityState === "visible" && getSelection().isCollapsed;
    if (performance.now() < due || !resting) return;
    history.replaceState({ declog: { made: REPORT.made, waits, reader: readerState() } }, "");
    location.reload();
  }, 250);
  showAge();
}

/** How old the file is, where the page says so. */
function showAge() {
  const age = $("#age");
  if (age) age.textContent = `, ${duration(Math.max(0, Date.now() / 1000 - REPORT.made))} ago`;
}
