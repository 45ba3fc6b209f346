// Lists what broke first, by step: curves that left their noise or healthy range or are not finite, and alerts.

const CAUSES = { noise: "leaves its own noise", healthy: "leaves its healthy range", finite: "is not finite", alert: "fired" };

/** Onsets and first alerts by step: {step, name, change, cause, hint, level}. */
function breaks() {
  const curves = RUN.onsets.map(({ step, name, title, mode, cause, change, members }) => ({
    step, cause, name: title || name, change: members > 1 ? `${change} (${members} of its curves)` : change,
    hint: `${name}${mode === "train" ? "" : `, ${mode}`} ${CAUSES[cause]} here`, level: cause === "finite" ? "error" : "warn",
  }));
  const names = [...new Set(RUN.alerts.map((alert) => alert.name))];
  const fired = names.map((name) => RUN.alerts.find((alert) => alert.name === name));
  const alerts = fired.map(({ step, name, text, level }) => ({ step, cause: "alert", name: `alert ${name}`, change: "", hint: text, level }));
  return [...curves, ...alerts].sort((a, b) => a.step - b.step || (a.cause === "alert") - (b.cause === "alert"));
}

function onsets() {
  if (!RUN.onsets.length) return;
  $("#onsets").append(
    el("h3", { textContent: "What broke first" }),
    el("ol", {}, breaks().map((change) => {
      const item = el("li", { class: change.level }, link(`step ${change.step}`, () => goToStep(change.step)), ` ${visible(change.name)} `, el("b", { textContent: visible(change.change) }));
      return hint(Object.assign(item, { tabIndex: 0 }), () => [el("span", { textContent: visible(change.hint) })]);
    })));
}
