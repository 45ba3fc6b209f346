// Builds the page from top to bottom, then follows the link in the address.

function hideSection(id) {
  $(`#${id}`).hidden = true;
  $(`nav a[href="#${id}"]`).hidden = true;
}

const hashOf = (target) => `#${Object.entries(target).map(([key, value]) => `${key}=${encodeURIComponent(value)}`)}`;

/** Go to a part of the page: {metric}, {sample}, {step}. */
function go(target) {
  const hash = hashOf(target);
  if (location.hash === hash) followHash();
  else location.hash = hash;
}

/** Decode a part of a link; a part that was cut in the middle of a character stays as it is. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function followHash() {
  const [key, text = ""] = location.hash.slice(1).split("=");
  const value = decoded(text);
  if (key === "metric") {
    const box = $$(".plot").find((plot) => plot.dataset.name.split("\n").includes(value));
    if (!box) return;
    if (box.hidden) filterCharts(($("#filter").value = ""));
    box.scrollIntoView({ block: "center" });
    $$(".plot.aimed").forEach((plot) => plot.classList.remove("aimed"));
    box.classList.add("aimed");
  } else if (key === "sample" && state.tables) {
    const [, id, row] = value.match(/^(.*)\/(\d+)$/) ?? [];
    if (!state.tables.some((table) => table.id === id && Number(row) < table.rows)) return;
    await openTable(id);
    if (!state.rows.includes(Number(row))) {
      Object.assign(state, { step: "", mode: "", query: "", where: "" });
      for (const control of ["#bystep", "#bymode", "#search", "#where"]) $(control).value = "";
      await applyFilters();
    }
    await openRow(Number(row), true);
    $("#samples").scrollIntoView();
  } else if (key === "step" && value !== "") goToStep(Number(value));
}

/** Mark the section in view in the navigation. */
function followScroll() {
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        for (const anchor of $$("nav a")) anchor.classList.toggle("on", anchor.hash === `#${target.id}`);
      }
    },
    { rootMargin: "-30% 0px -60%" });
  for (const section of $$("main section")) watch.observe(section);
}

/** Prepare for printing: use the light colours, and draw all charts. */
function onPaper(printing) {
  if (matchMedia("(prefers-color-scheme: dark)").matches) {
    document.documentElement.classList.toggle("paper", printing);
    schemeChanges.forEach((action) => action());
  }
  if (printing) drawAll();
}

async function main() {
  for (const run of REPORT.runs) await decodeSeries(run);
  pairSeries();
  const reader = before?.reader;
  if (reader) restoreView(reader);
  curves();
  overview();
  compared();
  changes();
  stepTime();
  logged();
  await distributions();
  await samples();
  $("#foot").textContent = visible(RUN.foot);
  followScroll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => schemeChanges.forEach((action) => action()));
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  addEventListener("hashchange", followHash);
  addEventListener("keydown", (event) => event.key === "Escape" && !isTyped(event) && pin(null));
  await (reader ? restoreReader(reader) : followHash());
  openAgain(readerState);
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

main().catch((error) => {
  document.body.prepend(el("pre", { class: "failed", textContent: `This report could not be shown: ${error.stack}` }));
  document.documentElement.dataset.failed = String(error);
});
