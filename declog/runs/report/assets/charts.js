// Assigns curves to charts: a family shares a chart, a mean has the band of its least and greatest, eval joins train.

const MOST_CURVES = 8; // the most curves of one chart

/** The charts by group: pairs of a group's name and its charts {lines, band, title, code}; a line is {series, label, colour, dash}. */
function chartsInGroups() {
  const all = [...RUN.series, ...OTHERS.flatMap((run) => run.series.filter(({ name, mode }) => !seriesOf(RUN, name, mode)))];
  const placed = new Set();
  const free = (test) => all.filter((series) => !placed.has(series) && test(series));
  const groups = new Map();
  const order = [...all].sort((a, b) => (a.mode !== "train") - (b.mode !== "train"));
  const bands = new Map(OTHERS.length ? [] : order.map((series) => [series, bandOf(series, all)]).filter(([, band]) => band));
  for (const ends of bands.values()) ends.forEach((end) => placed.add(end));
  for (const series of order) {
    if (placed.has(series)) continue;
    const chart = chartOf(series, bands.get(series), free);
    for (const line of chart.lines) placed.add(line.series);
    const group = groupOf(series);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(chart);
  }
  return [...groups].sort(([a], [b]) => rankOf(a) - rankOf(b));
}

/** The two series with the least and the greatest of the values whose mean is `series`; null if there are none. */
function bandOf(series, all) {
  if (series.reduction !== "mean" || !series.of) return null;
  const ends = ["min", "max"].map((reduction) =>
    all.filter((candidate) => candidate.run === series.run && candidate.mode === series.mode && candidate.reduction === reduction && candidate.of === series.of
      && candidate.member === series.member && candidate.at === series.at && !candidate.chart));
  return ends.every((matches) => matches.length === 1) && !series.chart ? ends.map(([end]) => end) : null;
}

/** The dashes of each mode's lines: those of train are solid. */
const DASHES = { train: undefined, eval: [5, 4] };
const dashOf = (mode) => (mode in DASHES ? DASHES[mode] : [2, 3]);

/** The chart of a series, with its family or the other metrics of its chart by colour, or with its modes by dash. */
function chartOf(series, band, free) {
  if (OTHERS.length) return comparedChart(series, free);
  const alike = (candidate) => candidate.mode === series.mode;
  const coloured = (members, labels) => members.map((member, i) => ({ series: member, label: labels[i], colour: i, dash: dashOf(member.mode) }));
  if (series.chart) {
    const members = free((candidate) => alike(candidate) && candidate.chart === series.chart);
    return { lines: coloured(members, members.map((member) => member.title || member.name)), title: series.chart, code: "", shared: true };
  }
  if (!band && series.member) {
    const family = free((candidate) => alike(candidate) && candidate.key === series.key && candidate.member && candidate.template === series.template);
    if (family.length > 1 && family.length <= MOST_CURVES) {
      return { lines: coloured(family, family.map((member) => member.member)), title: series.title || series.template, code: series.template };
    }
  }
  const modes = free((candidate) => !alike(candidate) && candidate.base === series.base && !candidate.chart && !candidate.member);
  const lines = [series, ...modes].slice(0, MOST_CURVES).map((line) => ({ series: line, label: line.mode, colour: 0, dash: dashOf(line.mode) }));
  return { lines, band, title: series.title || series.name, code: series.name };
}

/** The chart of a series and its modes in all runs: the colour shows the run, and the dash the mode. */
function comparedChart(series, free) {
  const modes = free((candidate) => candidate !== series && candidate.run === series.run && candidate.mode !== series.mode && candidate.base === series.base && !candidate.member);
  const lines = [series, ...modes].flatMap((mode) => [mode, ...mode.others]).map((line) => ({
    series: line, label: line.mode === "train" ? line.run.label : `${line.run.label} (${line.mode})`, colour: REPORT.runs.indexOf(line.run), dash: dashOf(line.mode),
  }));
  return { lines, title: series.title || series.name, code: series.name };
}

function groupOf(series) {
  if (series.tags.includes("core") && series.mode === "train") return "core";
  const parts = series.name.split("/").filter(Boolean);
  return parts.length > 1 ? parts[0] : "other";
}

const rankOf = (group) => (group === "core" ? 0 : group === "declog" ? 3 : group === "other" ? 1 : 2);
const groupTitle = (group) => (group === "declog" ? "declog itself" : group);
