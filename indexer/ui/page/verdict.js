// How the fleet is, in a sentence; then the figures and findings behind it.

import { html } from "./vendor/preact/preact.js";
import { count, num, percent, poolUsed, short } from "./format.js";

const kLevels = {
  good: { glyph: "✓", word: "Well" },
  warning: { glyph: "!", word: "Attention" },
  bad: { glyph: "✕", word: "Trouble" },
  unknown: { glyph: "?", word: "Not known" },
};

function Facts({ fleet }) {
  const { totals, versions } = fleet;
  const used = poolUsed(totals.used_blocks, totals.free_blocks);
  const cells = fleet.kind === "leaf" ? null : `${count(totals.cells_exact)} / ${count(totals.cells)}`;
  const skewed = versions.length > 1;
  const facts = [
    ["Cells exact", cells],
    ["Workers", count(num(totals.workers))],
    ["Silent", num(totals.workers_silent) > 0 ? count(num(totals.workers_silent)) : null],
    ["Pools in use", used === null ? null : percent(used)],
    ["Running", count(num(totals.running))],
    ["Waiting", count(num(totals.waiting))],
    [fleet.kind === "hierarchy" ? "Waypoints" : "Blocks indexed",
      num(totals.blocks) > 0 ? short(num(totals.blocks)) : null],
  ].filter(([, value]) => value !== null);
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    <div class=${skewed ? "skewed" : ""}>
      <dt>${skewed ? "Versions differ" : "Version"}</dt>
      <dd>${versions.map(({ version, processes }) =>
        html`<span class="version">${version}${(skewed || processes > 1) && html`<small> × ${count(processes)}</small>`}</span>`)}</dd>
    </div>
  </dl>`;
}

function Finding({ finding }) {
  const where = [finding.cell && `cell ${finding.cell}`, finding.worker && `worker ${finding.worker}`]
    .filter(Boolean).join(", ");
  return html`<li class="finding">
    <p><b>${finding.cause.replaceAll("_", " ")}</b>${where && html` – ${where}`}
      <span class="quiet"> ${percent(finding.confidence)} sure</span></p>
    <p>${finding.meaning}.</p>
    ${finding.remedy && html`<p class="remedy">${finding.remedy}</p>`}
    ${(finding.evidence ?? []).length > 0 && html`<details><summary>Evidence</summary>
      <ul>${finding.evidence.map((line) => html`<li>${line}</li>`)}</ul></details>`}
  </li>`;
}

export function Verdict({ fleet, lost }) {
  const { verdict, findings } = fleet;
  const level = lost ? "unknown" : verdict.level;
  const { glyph, word } = kLevels[level] ?? kLevels.unknown;
  const text = verdict.text.charAt(0).toUpperCase() + verdict.text.slice(1);
  return html`<section class="verdict ${level}" aria-labelledby="verdict-text">
    <div class="sentence">
      <span class="sign" aria-hidden="true">${glyph}</span>
      <h1 id="verdict-text" aria-live="polite"><span class="unseen">${word}: </span>${text}.</h1>
    </div>
    <${Facts} fleet=${fleet} />
    ${verdict.points.length > 2 && html`<details class="points">
      <summary>All ${verdict.points.length} points</summary>
      <ul>${verdict.points.map((point) => html`<li>${point}</li>`)}</ul>
    </details>`}
    ${findings.length > 0 && html`<div class="findings">
      <h2>Findings</h2>
      <ul>${findings.map((finding) => html`<${Finding} finding=${finding} />`)}</ul>
    </div>`}
  </section>`;
}
