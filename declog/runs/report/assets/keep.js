// Keeps the reader's settings and position while the page of a running run reloads.

const KEPT_OF_SAMPLES = ["order", "step", "mode", "query", "where", "selected", "side"];
const CONTROLS = { "#bystep": "step", "#byorder": "order", "#bymode": "mode", "#search": "query", "#where": "where" };

/** The settings and the position as plain data, before a reload. */
function readerState() {
  return {
    view,
    filter: $("#filter").value,
    colouredBy,
    finder,
    finderTop: $("#finder .tall")?.scrollTop,
    samples: state.table && {
      id: state.table.id,
      ...Object.fromEntries(KEPT_OF_SAMPLES.map((key) => [key, state[key]])),
      listTop: state.rows.indexOf(state.selected) * ROW_HEIGHT - $("#list").scrollTop,
      detailTop: $("#detail").scrollTop,
      unfolded: $$("#detail details").map((details) => details.open),
    },
    packs: $$("#logged details[open]").map(nameOfDetails),
    focus: document.activeElement?.id,
    position: positionInPage(),
  };
}

/** Restore the settings of the curves, before they are drawn. */
function restoreView(kept) {
  Object.assign(view, kept.view);
  colouredBy = kept.colouredBy;
  Object.assign(finder, kept.finder);
  $("#smoothing").value = view.smoothing;
  $("#log").checked = view.log;
  $("#unzoom").hidden = !view.zoom;
}

/** Restore everything else, once the page is complete. */
async function restoreReader(kept) {
  if (kept.filter) filterCharts(($("#filter").value = kept.filter));
  for (const details of $$("#logged details")) details.open = kept.packs.includes(nameOfDetails(details));
  if (kept.samples && state.tables?.some((table) => table.id === kept.samples.id)) await restoreSamples(kept.samples);
  if ($("#finder .tall")) $("#finder .tall").scrollTop = kept.finderTop;
  if (view.pinned != null) pin(view.pinned);
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  scrollToPosition(kept.position);
}

async function restoreSamples(kept) {
  await openTable(kept.id);
  for (const key of KEPT_OF_SAMPLES) state[key] = kept[key];
  const { selected } = state;
  for (const [control, key] of Object.entries(CONTROLS)) $(control).value = state[key];
  await applyFilters();
  if (!state.rows.includes(selected)) return;
  await openRow(selected);
  $("#list").scrollTop = state.rows.indexOf(selected) * ROW_HEIGHT - kept.listTop;
  paintList();
  kept.unfolded.forEach((open, index) => Object.assign($$("#detail details")[index] ?? {}, { open }));
  $("#detail").scrollTop = kept.detailTop;
}

const nameOfDetails = (details) => ($("summary b", details) ?? $("summary", details)).textContent;

/** The section or chart at the head of the window, and its offset: a scroll position is not enough, as parts above may grow. */
function positionInPage() {
  if (!scrollY) return null;
  const head = $("header").getBoundingClientRect().bottom;
  const below = (node) => node.getBoundingClientRect().bottom > head;
  const chart = $$(".plot:not([hidden])").find(below);
  const section = $$("main section:not([hidden])").find(below);
  const inCurves = section?.id === "curves" && chart;
  const top = (inCurves ? chart : section)?.getBoundingClientRect().top;
  return section && { section: section.id, chart: inCurves ? chart.dataset.name : null, top };
}

function scrollToPosition(position) {
  const chart = position?.chart && $$(".plot").find((plot) => plot.dataset.name === position.chart);
  const node = chart || (position && document.getElementById(position.section));
  if (node) scrollBy({ top: node.getBoundingClientRect().top - position.top, behavior: "instant" });
}
