// Which worker was chosen lately, and what each candidate would have cost, term by term.

import { html } from "./vendor/preact/preact.js";
import { ago, short, withUnit, workerName } from "./format.js";

// The terms of a candidate's cost, as the receipt names them.
const kTerms = ["prefill", "fetch", "queue", "decode", "memory", "distance", "session", "siblings", "crowding", "transfer"];
const kCandidatesShown = 6;

const term = (candidate, name) => candidate[`${name}_cost`] ?? 0;

function Bar({ candidate, scale }) {
  const parts = kTerms.map((name, i) => ({ name, i, cost: term(candidate, name) })).filter(({ cost }) => cost > 0);
  const said = parts.map(({ name, cost }) => `${name} ${short(cost)}`).join(", ") || "costs nothing";
  return html`<span class="bar" role="img" aria-label=${said} title=${said}>
    ${parts.map(({ name, i, cost }) =>
      html`<i key=${name} class=${`term t${i}`} style=${{ width: `${(100 * cost) / scale}%` }}></i>`)}
  </span>`;
}

function Candidates({ decision, scale }) {
  const all = decision.receipt.candidates;
  return html`<table class="candidates">
    <caption class="unseen">Candidates, the cheapest first</caption>
    <thead><tr><th scope="col">Candidate</th><th scope="col" class="n">Overlap</th><th scope="col" class="n">Cost</th>
      <th scope="col">Terms</th></tr></thead>
    <tbody>${all.slice(0, kCandidatesShown).map((candidate) => {
      const name = workerName(candidate.worker, candidate.rank);
      const is = candidate.worker === decision.worker && candidate.rank === decision.rank && candidate.cell === decision.cell;
      return html`<tr key=${candidate.cell + name} class=${is ? "chosen" : ""}>
        <th scope="row">${name} <span class="quiet">${candidate.cell}</span>${is && html` <b>chosen</b>`}</th>
        <td class="n">${short(candidate.overlap_blocks)}${
          candidate.store_blocks > 0 && html` <span class="quiet">${short(candidate.store_blocks)} from a store</span>`}</td><td class="n">${short(candidate.cost)}</td>
        <td class="wide"><${Bar} candidate=${candidate} scale=${scale} /></td></tr>`;
    })}</tbody></table>
    ${decision.receipt.candidates_considered > kCandidatesShown &&
      html`<p class="quiet">${short(decision.receipt.candidates_considered)} were considered.</p>`}`;
}

function Decision({ decision, scale }) {
  const { receipt } = decision;
  const chosen = receipt.candidates.find((c) =>
    c.worker === decision.worker && c.rank === decision.rank && c.cell === decision.cell) ?? {};
  const share = receipt.blocks ? decision.overlap_blocks / receipt.blocks : 0;
  const served = decision.report?.cached_tokens;
  return html`<li><details>
    <summary>
      <span class="when">${decision.age_s < 1 ? "just now" : `${ago(decision.age_s * 1000)} ago`}</span>
      <span class="who"><b>${workerName(decision.worker, decision.rank)}</b> <span class="quiet">${decision.cell}</span></span>
      <span class="model">${decision.model}</span>
      <span class="hit" role="img" aria-label=${`${decision.overlap_blocks} of ${receipt.blocks} blocks cached`}>
        <i style=${{ width: `${Math.min(100, share * 100)}%` }}></i></span>
      <span class="n">${short(decision.overlap_blocks)} / ${short(receipt.blocks)}</span>
      <${Bar} candidate=${chosen} scale=${scale} />
      <span class="n">${withUnit(receipt.total_us / 1000, "ms")}</span>
    </summary>
    <p class="quiet">Decision ${decision.decision_id}${receipt.fallback !== "none" &&
      html`, fallback <b>${receipt.fallback}</b>: ${receipt.reason}`}${served !== undefined &&
      html`; the engine served ${short(served)} of ${short(decision.predicted_tokens)} predicted tokens`}.</p>
    <${Candidates} ...${{ decision, scale }} />
  </details></li>`;
}

export function Decisions({ list, error }) {
  const scale = Math.max(1, ...(list ?? []).flatMap((d) => d.receipt.candidates.slice(0, kCandidatesShown).map((c) => c.cost)));
  const used = kTerms.map((name, i) => ({ name, i })).filter(({ name }) =>
    (list ?? []).some((d) => d.receipt.candidates.some((c) => term(c, name) > 0)));
  return html`<section aria-labelledby="decisions-title">
    <div class="heading"><h2 id="decisions-title">Decisions <small>the latest first; lower cost is better</small></h2>
      <ul class="legend" aria-label="Terms of the cost">
        ${used.map(({ name, i }) => html`<li key=${name}><i class=${`swatch term t${i}`} aria-hidden="true"></i>${name}</li>`)}
      </ul></div>
    ${error && html`<p class="card empty">Decisions are not shown: ${error}.</p>`}
    ${!error && (list ?? []).length === 0 && html`<p class="card empty">No request was routed in the last 15 minutes.</p>`}
    ${!error && (list ?? []).length > 0 && html`<div class="card decisions">
      <div class="columns" aria-hidden="true"><span>When</span><span>Worker</span><span class="model">Model</span><span>From cache</span>
        <span class="n">Blocks</span><span>Cost</span><span class="n">Took</span></div>
      <ul>${list.map((decision) => html`<${Decision} key=${decision.decision_id} ...${{ decision, scale }} />`)}</ul>
    </div>`}
  </section>`;
}
