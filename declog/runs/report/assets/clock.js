// The clock axis: it places each step at its time. Values, zoom and pins still belong to steps; only positions change.

const clockChanges = []; // functions to call when the axis changes

/** Show all charts by the clock, or by step. */
function setClock(on) {
  $("#clock").checked = on;
  redraw({ clock: on });
  clockChanges.forEach((action) => action());
}

/** Offer the clock if the times of log events are known, and for a single run only: each run has its own clock. */
function clockControl() {
  const hasTimes = RUN.time && !OTHERS.length;
  $("#clock").closest("label").hidden = !hasTimes;
  if (!hasTimes) view.clock = false;
  $("#clock").checked = view.clock;
  $("#clock").addEventListener("change", (event) => setClock(event.target.checked));
}

/** Interpolate a value linearly between known ones; beyond the ends, extrapolate at the average pace. */
function between(value, from, to) {
  const end = from.length - 1;
  const pace = (to[end] - to[0]) / (from[end] - from[0]);
  if (value <= from[0]) return to[0] + (value - from[0]) * pace;
  if (value >= from[end]) return to[end] + (value - from[end]) * pace;
  let [low, high] = [0, end];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle;
    else high = middle;
  }
  return to[low] + ((value - from[low]) / (from[high] - from[low])) * (to[high] - to[low]);
}

const clockOf = (step) => between(step, RUN.time.axis.steps, RUN.time.axis.seconds);
const stepAtClock = (seconds) => between(seconds, RUN.time.axis.seconds, RUN.time.axis.steps);

/** The options that make a scale of uPlot one of the clock. */
const clockScale = () => (view.clock ? { distr: 100, fwd: clockOf, bwd: stepAtClock } : {});

const CLOCK_TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800]; // seconds

function clockAxis() {
  if (!view.clock) return {};
  const splits = (plot, axis, low, high) => {
    const [from, to] = [clockOf(low), clockOf(high)];
    const room = Math.max(2, plot.bbox.width / devicePixelRatio / 80);
    const apart = CLOCK_TICKS.find((seconds) => (to - from) / seconds <= room) ?? (to - from) / room;
    return Array.from({ length: Math.max(0, Math.floor(to / apart) - Math.ceil(from / apart) + 1) }, (_, i) => stepAtClock((Math.ceil(from / apart) + i) * apart));
  };
  return { splits, filter: (_, steps) => steps, values: (_, steps) => steps.map((step) => duration(Math.round(clockOf(step)))) };
}
