// Before anything is drawn: the colours that were chosen here, or else the system's.
(() => {
  try {
    const chosen = localStorage.getItem("kvatlas.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage the system's count.
  }
})();
