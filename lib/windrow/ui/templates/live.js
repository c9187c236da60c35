// Read the page again, and show its new content where nothing is selected.
"use strict";
const interval = Number(document.currentScript.dataset.interval);

function keepOpen(fresh) {
  for (const open of document.querySelectorAll("main details[open]")) {
    const same = fresh.querySelector(`#${CSS.escape(open.closest("section").id)} details`);
    if (same) same.open = true;
  }
}

function keepPlace(fresh) {
  const before = [...document.querySelectorAll("main .scroll")].map((box) => box.scrollLeft);
  document.querySelector("main").replaceWith(fresh);
  [...fresh.querySelectorAll(".scroll")].forEach((box, number) => { box.scrollLeft = before[number] || 0; });
}

async function renew() {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = document.importNode(page.querySelector("main"), true);
  keepOpen(fresh);
  keepPlace(fresh);
  for (const id of ["at", "changes"]) {
    const [old, now] = [document.getElementById(id), page.getElementById(id)];
    if (old && now && !old.contains(document.activeElement)) old.replaceWith(document.importNode(now, true));
  }
}

async function loop() {
  const state = document.getElementById("state");
  try {
    if (!document.hidden && getSelection().isCollapsed) await renew();
    state.textContent = "";
  } catch {
    state.textContent = "Not refreshed: the server does not answer. Start `windrow ui` again.";
  }
  setTimeout(loop, interval);
}
setTimeout(loop, interval);
