// Which curves stand in which chart: families together, the mean in the band of its least and greatest, eval with train.

const MOST_CURVES = 8; // in one chart

/** Charts in groups: a map of the group's name to charts {series, labels, band, title, code}. */
function chartsInGroups() {
  const all = [...RUN.series];
  if (OTHER) {
    for (const series of OTHER.series) {
      const same = seriesOf(RUN, series.name, series.mode);
      if (same) same.other = series;
      else all.push(series);
    }
  }
  const placed = new Set();
  const free = (test) => all.filter((one) => !placed.has(one) && test(one));
  const groups = new Map();
  const order = [...all].sort((a, b) => (a.mode !== "train") - (b.mode !== "train"));
  const bands = new Map(order.map((series) => [series, bandOf(series, all)]).filter(([, band]) => band));
  for (const ends of bands.values()) ends.forEach((end) => placed.add(end));
  for (const series of order) {
    if (placed.has(series)) continue;
    const chart = chartOf(series, bands.get(series), free);
    for (const one of chart.series) placed.add(one);
    const group = groupOf(series);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(chart);
  }
  return [...groups].sort(([a], [b]) => rankOf(a) - rankOf(b));
}

/** The series of the least and of the greatest of what another is the mean of. */
function bandOf(series, all) {
  if (series.reduction !== "mean" || !series.of) return null;
  const ends = ["min", "max"].map((reduction) =>
    all.filter((one) => one.run === series.run && one.mode === series.mode && one.reduction === reduction && one.of === series.of
      && one.member === series.member && one.at === series.at && !one.chart));
  return ends.every((found) => found.length === 1) && !series.chart ? ends.map(([end]) => end) : null;
}

function chartOf(series, band, free) {
  const alike = (one) => one.run === series.run && one.mode === series.mode;
  if (series.chart) {
    const members = free((one) => alike(one) && one.chart === series.chart);
    const names = members.map((one) => one.title || one.name);
    return { series: members, labels: names, title: series.chart, code: "", shared: true };
  }
  if (!band && series.member) {
    const family = free((one) => alike(one) && one.key === series.key && one.member && one.template === series.template);
    if (family.length > 1 && family.length <= MOST_CURVES) {
      return { series: family, labels: family.map((one) => one.member), title: series.title || series.template, code: series.template };
    }
  }
  const modes = free((one) => one.run === series.run && one.mode !== series.mode && one.base === series.base && !one.chart && !one.member);
  const curves = [series, ...modes].slice(0, MOST_CURVES);
  return { series: curves, labels: curves.map((one) => one.mode), band, title: series.title || series.name, code: series.name };
}

function groupOf(series) {
  if (series.tags.includes("core") && series.mode === "train") return "core";
  const parts = series.name.split("/").filter(Boolean);
  return parts.length > 1 ? parts[0] : "other";
}

const rankOf = (group) => (group === "core" ? 0 : group === "declog" ? 3 : group === "other" ? 1 : 2);
const groupTitle = (group) => (group === "declog" ? "declog itself" : group);
