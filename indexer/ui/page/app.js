// The page: a verdict, charts, a map, streams, decisions, where a prompt is cached, and sessions.

import { html, render, useEffect, useState } from "./vendor/preact/preact.js";
import { Charts } from "./charts.js";
import { Poll } from "./data.js";
import { Decisions } from "./decisions.js";
import { Explain } from "./explain.js";
import { ago } from "./format.js";
import { FleetMap } from "./map.js";
import { Sessions } from "./sessions.js";
import { Peers, Streams } from "./streams.js";
import { Verdict } from "./verdict.js";

const kKinds = {
  frontend: "Frontend",
  leaf: "Leaf",
  hierarchy: "Hierarchy node",
};
// Frontends tell leaves of sessions, and nodes of none.
const kHasSessions = ["frontend", "leaf"];
const kThemes = ["system", "light", "dark"];

function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    try {
      localStorage.setItem("kvatlas.theme", name);
    } catch {
      // It counts until the page is left.
    }
    setTheme(name);
  };
  return [theme, choose];
}

// True where dark colours are in use, by choice or by the system.
function useDark(theme) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [system, setSystem] = useState(query.matches);
  useEffect(() => {
    const changed = () => setSystem(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return theme === "system" ? system : theme === "dark";
}

function Header({ state, theme, chooseTheme, paused, pause }) {
  const { fleet, error, at } = state;
  const age = at ? Date.now() - at : null;
  return html`<header class="top">
    <div class="brand">
      <span class="mark" aria-hidden="true"><i></i><i></i><i></i></span>
      <strong>kvatlas</strong>
      ${fleet && html`<span class="kind">${kKinds[fleet.kind] ?? fleet.kind}</span>
        <span class="name">${fleet.name}</span>`}
    </div>
    <div class="tools">
      <span class=${error ? "updated lost" : "updated"} role="status">
        ${error
          ? html`<b>${error}</b>${age !== null && html` – shown is what was ${ago(age)} ago`}`
          : paused ? "paused" : "live"}
      </span>
      <button type="button" class="plain" aria-pressed=${paused} onClick=${() => pause(!paused)}>
        ${paused ? "Go on" : "Pause"}
      </button>
      <label class="theme"><span class="unseen">Colours</span>
        <select value=${theme} onChange=${(event) => chooseTheme(event.target.value)}>
          ${kThemes.map((name) => html`<option value=${name} selected=${name === theme}>${name}</option>`)}
        </select>
      </label>
    </div>
  </header>`;
}

function Page() {
  const [state, setState] = useState(null);
  const [poll, setPoll] = useState(null);
  const [paused, setPaused] = useState(false);
  const [theme, chooseTheme] = useTheme();
  const dark = useDark(theme);
  useEffect(() => setPoll(new Poll(setState)), []);
  // The age of what is shown goes on while nothing comes.
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (!state) return html`<p class="waiting">Asking…</p>`;
  const { fleet, series } = state;
  const pause = (yes) => {
    setPaused(yes);
    poll?.pause(yes);
  };
  return html`
    <a class="skip" href="#main">To the content</a>
    <${Header} ...${{ state, theme, chooseTheme, paused, pause }} />
    <main id="main">
      ${fleet && html`
        <${Verdict} fleet=${fleet} lost=${state.error} />
        <${Charts} series=${series} at=${series.last()} dark=${dark} />
        <${FleetMap} fleet=${fleet} />
        <${Streams} fleet=${fleet} />
        ${fleet.peers_total > 0 && html`<${Peers} fleet=${fleet} />`}
        ${fleet.decisions && html`<${Decisions} list=${state.decisions} error=${state.decisionsError} />`}
        <${Explain} fleet=${fleet} />
        ${kHasSessions.includes(fleet.kind) && html`<${Sessions} />`}
      `}
      ${!fleet && html`<p class="waiting">${state.error}</p>`}
    </main>`;
}

render(html`<${Page} />`, document.getElementById("page"));
