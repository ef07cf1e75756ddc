// One listener each for whatever trajectories are on the page: Gradio exchanges HTML without running scripts in it.
"use strict";
(() => {
  const from = (event, selector) => (event.target instanceof Element ? event.target.closest(selector) : null);

  // A citation lights the evidence that it names, and the words of its step that stand there
  const light = (chip) => {
    for (const lit of document.querySelectorAll(".explorer .lit")) lit.classList.remove("lit");
    if (!chip) return [];
    const view = chip.closest(".explorer"), card = CSS.escape(chip.dataset.card);
    const cards = [...view.querySelectorAll(`.evidence[data-card="${card}"]`)];
    const words = (chip.closest(".step") || view).querySelectorAll(`.word[data-in~="${card}"]`);
    for (const node of [chip, ...cards, ...words]) node.classList.add("lit");
    return cards;
  };
  const show = (node) => node.scrollIntoView({ block: "nearest" });
  for (const name of ["mouseover", "focusin"]) document.addEventListener(name, (event) => light(from(event, "button.cite")));

  // The address in the browser is always that of the step
  const go = (link) => {
    for (const other of link.closest(".rail").querySelectorAll("a")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "step");
    link.focus({ preventScroll: true });
    history.replaceState(history.state, "", link.href);
    show(document.getElementById(link.hash.slice(1)));
  };

  document.addEventListener("click", (event) => {
    const chip = from(event, "button.cite"), link = from(event, ".rail a"), bin = from(event, ".bins button");
    if (chip) for (const card of light(chip)) show(Object.assign(card, { open: true }));
    if (bin) filter(bin);
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link);
  });

  const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
  document.addEventListener("keydown", (event) => {
    const view = from(event, ".trajectory");
    if (!view || !(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const links = [...view.querySelectorAll(".rail a")];
    const next = links[links.findIndex((link) => link.hasAttribute("aria-current")) + steps[event.key]];
    event.preventDefault();
    if (next) go(next);
  });

  // Rows of an audit whose score lies in the bar; the same bar again shows all
  const filter = (bin) => {
    const pressed = bin.getAttribute("aria-pressed") !== "true", view = bin.closest(".explorer");
    for (const other of view.querySelectorAll(".bins button")) other.setAttribute("aria-pressed", "false");
    bin.setAttribute("aria-pressed", String(pressed));
    const rows = new Set(bin.dataset.rows.split(" "));
    const items = [...view.querySelectorAll(".rows li")];
    for (const item of items) item.hidden = pressed && !rows.has(item.dataset.row);
    view.querySelector(".shown").textContent = pressed ? `${bin.title}: ${items.filter((item) => !item.hidden).length} of ${items.length}` : "";
  };

  // A link to a step is followed when that trajectory comes, and again when more of it does, until the reader does something
  const linked = (link) => {
    const at = new URLSearchParams(location.search);
    return link.hash === location.hash && link.offsetParent && [...new URLSearchParams(link.search)].every(([name, value]) => at.get(name) === value);
  };
  const waiting = new MutationObserver(() => {
    const link = [...document.querySelectorAll(".rail a")].find(linked);
    if (link && !link.hasAttribute("aria-current")) go(link);
  });
  if (location.hash) waiting.observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["style", "class"] });
  for (const name of ["keydown", "pointerdown", "wheel"]) document.addEventListener(name, () => waiting.disconnect());

  // What Gradio calls: an audit's rows tell it which was chosen and for which side, and a made file is saved
  window.explorer = {
    chooses: (element, trigger) => element.addEventListener("click", (event) => {
      const button = from(event, "[data-side]");
      if (button) trigger("select", { side: button.dataset.side, row: Number(button.parentElement.dataset.row) });
    }),
    download: (text, name) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text])), download: name });
      link.click();
      URL.revokeObjectURL(link.href);
    },
  };
})();
