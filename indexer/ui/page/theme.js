// Before anything is drawn: the colours that were chosen here, or else the system's.
(() => {
  let chosen = "system";
  try {
    chosen = localStorage.getItem("kvatlas.theme") ?? chosen;
  } catch {
    // Without storage the system's count.
  }
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  Object.assign(document.documentElement.dataset, { chosen, theme: dark ? "dark" : "light" });
})();
