// Buttons that copy a block of code; and the choice of a version, where several are published side by side.
"use strict";

// Pages that are read from a disk can't fetch other pages, which the list of results would quote.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

function addCopyButtons() {
  if (!navigator.clipboard) return; // only where the browser lets pages copy
  for (const block of document.querySelectorAll("div.highlight > pre, div.ns-install")) {
    const button = document.createElement("button");
    button.className = "ns-copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const code = block.cloneNode(true);
      for (const own of code.querySelectorAll(".ns-copy, .gp, .go")) own.remove(); // prompts and output
      const text = code.textContent.trim();
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.parentElement.classList.add("ns-has-copy");
    (block.matches("pre") ? block.parentElement : block).append(button);
  }
}

// versions.js, beside the directories of the versions, sets window.nsboxVersions.
function addVersions() {
  const place = document.querySelector(".ns-versions");
  if (!place) return;
  const { root, version } = place.dataset;
  const script = document.createElement("script");
  script.src = `${root}../versions.js`;
  script.addEventListener("load", () => {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "Version");
    for (const name of window.nsboxVersions) choice.add(new Option(name, name, false, name === version));
    choice.addEventListener("change", () => (location.href = `${root}../${choice.value}/index.html`));
    place.append(choice);
  });
  document.head.append(script);
}

document.addEventListener("DOMContentLoaded", () => {
  addCopyButtons();
  addVersions();
});
