"use strict";
(() => {
  const list = document.getElementById("rollouts");
  const rollouts = [...list.querySelectorAll(".rollout")];
  const names = ["words", "metric", "least", "most", "order", "issue", "dialect"];
  const controls = Object.fromEntries(names.map((id) => [id, document.getElementById(id)]));
  const usual = Object.fromEntries(names.map((id) => [id, controls[id].value]));
  const shown = document.getElementById("shown");
  const scores = new Map(rollouts.map((item) => [item, JSON.parse(item.dataset.scores)]));
  const issues = new Map(rollouts.map((item) => [item, JSON.parse(item.dataset.issues)]));
  const lower = new Set(JSON.parse(list.dataset.lower));
  const texts = new Map();

  const text = (item) => {
    if (!texts.has(item)) texts.set(item, item.textContent.toLowerCase());
    return texts.get(item);
  };
  const value = (item) => scores.get(item)[controls.metric.value] ?? null;

  const fits = (item) => {
    const words = controls.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { least, most, issue, dialect } = controls;
    if (dialect.value && item.dataset.dialect !== dialect.value) return false;
    if (issue.value && !(issue.value === "*" ? issues.get(item).length : issues.get(item).includes(issue.value))) return false;
    if ((least.value || most.value) && value(item) === null) return false;
    if (least.value && value(item) < Number(least.value)) return false;
    if (most.value && value(item) > Number(most.value)) return false;
    return words.every((word) => text(item).includes(word));
  };

  const byRow = (a, b) => Number(a.dataset.row) - Number(b.dataset.row);
  const byScore = (sign) => (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null) || byRow(a, b);
    return (lower.has(controls.metric.value) ? -sign : sign) * (x - y) || byRow(a, b);
  };
  const orders = { row: byRow, worst: byScore(1), best: byScore(-1) };

  const arrange = () => {
    rollouts.sort(orders[controls.order.value]);
    if (rollouts.some((item, place) => list.children[place] !== item)) list.append(...rollouts);
  };

  const apply = () => {
    arrange();
    let count = 0;
    for (const item of rollouts) {
      item.hidden = !fits(item);
      count += !item.hidden;
    }
    const all = Number(list.dataset.all);
    const rest = all > rollouts.length ? `; the file has ${all}` : "";
    shown.textContent = `${count} of ${rollouts.length} shown${rest}`;
  };

  const set = (wanted) => {
    for (const id of names) controls[id].value = wanted.get(id) ?? usual[id];
    apply();
  };

  // #?metric=…&order=… is a view of the list, #row-3, #row-3-step-2 and #row-3-step-2-passage-1 are places in it
  const openTarget = () => {
    const place = location.hash.slice(1);
    if (place.startsWith("?")) {
      set(new URLSearchParams(place));
      document.getElementById("trajectories").scrollIntoView();
      return;
    }
    const target = place && document.getElementById(place);
    const rollout = target && target.closest(".rollout");
    if (rollout) {
      if (rollout.hidden) set(new Map());
      rollout.open = true;
      if (target.matches("details")) target.open = true;
      target.scrollIntoView();
    } else if (place.startsWith("row-")) {
      shown.textContent = `row ${parseInt(place.slice(4), 10)} is not on this page: --report-rows shows more`;
      document.getElementById("trajectories").scrollIntoView();
    }
  };

  for (const control of Object.values(controls)) control.addEventListener("input", apply);
  document.getElementById("toggle").addEventListener("click", () => {
    const visible = rollouts.filter((item) => !item.hidden);
    const open = visible.some((item) => !item.open);
    for (const item of visible) item.open = open;
  });
  window.addEventListener("hashchange", openTarget);
  apply();
  openTarget();
})();
