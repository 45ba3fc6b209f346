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
      unfolded: $$("#detail details").map((one) => one.open),
    },
    packs: $$("#logged details[open]").map(nameOfDetails),
    focus: document.activeElement?.id,
    place: placeInPage(),
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
  for (const one of $$("#logged details")) one.open = kept.packs.includes(nameOfDetails(one));
  if (kept.samples && state.tables?.some((one) => one.id === kept.samples.id)) await restoreSamples(kept.samples);
  if ($("#finder .tall")) $("#finder .tall").scrollTop = kept.finderTop;
  if (view.pinned != null) pin(view.pinned);
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  scrollToPlace(kept.place);
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
  kept.unfolded.forEach((open, place) => Object.assign($$("#detail details")[place] ?? {}, { open }));
  $("#detail").scrollTop = kept.detailTop;
}

const nameOfDetails = (one) => ($("summary b", one) ?? $("summary", one)).textContent;

/** The section or chart at the head of the window, and its offset: a scroll position is not enough, as parts above may grow. */
function placeInPage() {
  if (!scrollY) return null;
  const head = $("header").getBoundingClientRect().bottom;
  const below = (one) => one.getBoundingClientRect().bottom > head;
  const chart = $$(".plot:not([hidden])").find(below);
  const section = $$("main section:not([hidden])").find(below);
  const inCurves = section?.id === "curves" && chart;
  const top = (inCurves ? chart : section)?.getBoundingClientRect().top;
  return section && { section: section.id, chart: inCurves ? chart.dataset.name : null, top };
}

function scrollToPlace(place) {
  const chart = place?.chart && $$(".plot").find((one) => one.dataset.name === place.chart);
  const node = chart || (place && document.getElementById(place.section));
  if (node) scrollBy({ top: node.getBoundingClientRect().top - place.top, behavior: "instant" });
}
