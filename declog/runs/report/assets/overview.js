// The head of the page: the name of the run, its problems, its core metrics.

/** The facts about a series, for hints. */
function about(series) {
  const lines = [el("b", { textContent: series.title || series.name })];
  if (series.help) lines.push(el("span", { textContent: series.help }));
  if (series.formula) lines.push(el("code", { textContent: series.formula }));
  if (series.words) lines.push(el("i", { textContent: series.words }));
  if (series.healthy) lines.push(el("i", { textContent: `healthy: ${healthyText(series)}` }));
  if (series.good) lines.push(el("i", { textContent: series.good === "up" ? "higher is better" : "lower is better" }));
  if (series.runbook) lines.push(el("i", { textContent: `what to do: ${series.runbook}` }));
  if (lines.length === 1) lines.push(el("i", { textContent: "the config says nothing about it" }));
  return lines;
}

/** A line about a run: its start, its steps, its duration, its constants. */
function subtitle(run) {
  const facts = [];
  if (run.started != null) facts.push(moment(run.started));
  const [first, end] = run.span ?? [];
  if (run.span) facts.push(first === end ? `step ${number(first)}` : `steps ${number(first)}–${number(end)}`);
  if (run.seconds >= 1) facts.push(duration(run.seconds));
  if (run.ranks > 1) facts.push(plural(run.ranks, "rank"));
  facts.push(...Object.entries(run.constants).map(([name, value]) => `${name} ${value}`));
  return visible(facts.join(" · "));
}

/** The badges of a run, which say whether its numbers can be trusted: [kind, text, hint, element behind the text]. */
function badgesOf(run) {
  const badges = [];
  const { state } = run;
  if (state === "running") badges.push(["live", `still running, as of ${moment(REPORT.made)}`, null, REPORT.every == null ? null : el("span", { id: "age" })]);
  else if (state === "failed") badges.push(["error", "ended with an error"]);
  else if (state === "killed") badges.push(["error", "ended without a word: killed, or its machine died"]);

  const errors = run.alerts.some((alert) => alert.level === "error");
  if (run.alerts.length) badges.push([errors ? "error" : "warn", plural(run.alerts.length, "alert")]);
  else badges.push(run.rules ? ["ok", "no alert fired"] : ["", "no alerts declared"]);

  const out = run.series.filter((series) => !isHealthy(series));
  const names = (list) => list.map((series) => series.title || series.name).join(", ");
  if (out.length) badges.push(["warn", `${out.length} out of range`, `outside the healthy range over the last tenth: ${names(out)}`]);

  const broken = run.series.filter((series) => series.notFinite);
  if (broken.length) badges.push(["error", `${plural(broken.length, "metric")} with NaN or Inf`, names(broken)]);
  else if (run.series.length) badges.push(["ok", "all values finite"]);

  const partial = run.series.filter((series) => series.partial);
  if (partial.length) badges.push(["warn", `partial: ranks missing at ${plural(Math.max(...partial.map((series) => series.partial)), "step")}`, names(partial)]);
  else if (run.ranks > 1) badges.push(["ok", "every rank in every window"]);

  const dropped = seriesOf(run, "declog/dropped");
  if (dropped) badges.push(last(dropped) ? ["error", `${number(last(dropped))} events dropped`] : ["ok", "nothing dropped"]);
  const failures = Object.entries(run.failures);
  const times = (count) => (count > 1 ? ` (${count} times)` : "");
  if (failures.length) {
    const all = failures.map(([what, count]) => what + times(count)).join("\n");
    badges.push(["error", `declog reported ${plural(failures.length, "failure")}`, all]);
  }

  const inactive = Object.keys(run.missing).length;
  if (inactive) badges.push(["warn", `${plural(inactive, "metric")} inactive`, inactiveLines(run).join("\n")]);
  if (run.parent) badges.push(["", `branch of ${run.parent.run_id} behind step ${run.parent.step}`, run.parent.output_dir]);
  for (const at of run.resumed) badges.push(["", `resumed at step ${at}`]);
  badges.push(["", plural(run.series.length, "curve")]);
  const rows = run.tables.reduce((sum, table) => sum + table.rows, 0);
  if (rows) badges.push(["", plural(rows, "sample")]);
  for (const note of run.notes) badges.push(["warn", note]);
  return badges;
}

/** The reasons why metrics have no values: a line for each reason, with its metrics. */
function inactiveLines({ missing }) {
  const reasons = new Map();
  for (const [metric, reason] of Object.entries(missing)) reasons.set(reason, [...(reasons.get(reason) ?? []), metric]);
  return [...reasons].map(([reason, metrics]) => `${reason}: ${metrics.join(", ")}`);
}

function overview() {
  $("#title").textContent = visible(RUN.name);
  $("#sub").textContent = subtitle(RUN);
  for (const [kind, text, more, behind] of badgesOf(RUN)) {
    const badge = el("span", { class: `badge ${kind}` }, visible(text), behind);
    if (more) hint(Object.assign(badge, { tabIndex: 0 }), () => [el("span", { textContent: visible(more) })]);
    $("#badges").append(badge);
  }
  if (!RUN.series.length && !RUN.tables.length) $("#alerts").append(el("p", { class: "empty", textContent: "Nothing was logged yet." }));
  alerts();
  onsets();
  $("#cards").append(...RUN.core.map((name) => card(seriesOf(RUN, name, "train") || seriesOf(RUN, name))));
}

const SHOWN_STEPS = 6; // the most steps of one alert that are listed

/** Show the alerts by name; each step is a link to the nearest samples. */
function alerts() {
  for (const name of new Set(RUN.alerts.map((alert) => alert.name))) {
    const fired = RUN.alerts.filter((alert) => alert.name === name);
    const { level, text } = fired.at(-1);
    const steps = fired.slice(0, SHOWN_STEPS).map((alert) => link(`step ${alert.step}`, () => goToStep(alert.step), { title: visible(alert.text) }));
    const rest = fired.length - steps.length;
    if (rest) steps.push(el("span", { class: "dim", textContent: `and ${rest} more, until` }), link(`step ${fired.at(-1).step}`, () => goToStep(fired.at(-1).step)));
    $("#alerts").append(
      el("div", { class: `alert ${level}`, role: "note" },
        el("span", { class: "level", textContent: level }),
        el("span", { textContent: visible(text) }),
        el("span", { class: "dim", textContent: visible(name) }),
        el("span", { class: "when" }, steps)));
  }
}
