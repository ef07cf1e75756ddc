"use strict";
(() => {
  const list = document.getElementById("rollouts");
  const rollouts = [...list.querySelectorAll(".rollout")];
  const controls = Object.fromEntries(["words", "dialect", "metric", "below", "issues", "order"].map((id) => [id, document.getElementById(id)]));
  const shown = document.getElementById("shown");
  const scores = new Map(rollouts.map((item) => [item, JSON.parse(item.dataset.scores)]));
  const texts = new Map();

  const text = (item) => {
    if (!texts.has(item)) texts.set(item, item.textContent.toLowerCase());
    return texts.get(item);
  };
  const value = (item) => scores.get(item)[controls.metric.value] ?? null;

  const fits = (item) => {
    const words = controls.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (controls.dialect.value && item.dataset.dialect !== controls.dialect.value) return false;
    if (controls.issues.checked && item.dataset.issues === "0") return false;
    if (controls.below.value !== "" && !(value(item) !== null && value(item) <= Number(controls.below.value))) return false;
    return words.every((word) => text(item).includes(word));
  };

  const byRow = (a, b) => Number(a.dataset.row) - Number(b.dataset.row);
  const byScore = (sign) => (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null) || byRow(a, b);
    return sign * (x - y) || byRow(a, b);
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
    shown.textContent = `${count} of ${rollouts.length} shown`;
  };

  const openTarget = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.classList.contains("rollout")) {
      target.open = true;
      target.scrollIntoView();
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
