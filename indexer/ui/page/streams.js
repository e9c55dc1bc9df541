// The streams of this process: which sender tells what it holds, and how well; which peers this process asks.

import { html } from "./vendor/preact/preact.js";
import { ago, count, num, short, state } from "./format.js";

const kColumns = [
  ["gaps", "Gaps", "Batches that were missed, and repaired or waited for"],
  ["snapshots", "Snapshots", "Times that everything was sent anew"],
  ["digests_different", "Digests ≠", "Times that both ends' contents differed"],
  ["refusals", "Refused", "Hellos and events that were refused"],
  ["lost", "Lost", "Messages of an engine that never came"],
  ["behind", "Behind", "Waypoints kept back by the budget for coverage"],
];

function Count({ value }) {
  const n = num(value);
  return html`<td class=${n > 0 ? "n" : "n zero"}>${n > 0 ? short(n) : "0"}</td>`;
}

function how(stream) {
  if (stream.masked) return { name: "stale", text: "silent" };
  if (stream.state && stream.state !== "connected") return { name: "unreachable", text: stream.state };
  return { name: stream.trust, text: state(stream.trust).word };
}

export function Streams({ fleet }) {
  const { streams, streams_total: total } = fleet;
  const columns = kColumns.filter(([key]) => key !== "behind" || streams.some((s) => num(s.behind) > 0));
  return html`<section aria-labelledby="streams-title">
    <h2 id="streams-title">Streams <small>${streams.length < total
      ? `the worst ${streams.length} of ${count(total)}` : "the worst first"}</small></h2>
    ${streams.length === 0
      ? html`<p class="card empty">No stream is known yet.</p>`
      : html`<div class="card scroll" tabindex="0" role="region" aria-label="Table of streams"><table class="streams">
        <caption class="unseen">Streams of holdings, the worst first</caption>
        <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">Model</th><th scope="col">State</th>
          <th scope="col" class="n">Heard</th><th scope="col" class="n">Lag</th>
          ${columns.map(([key, name, about]) => html`<th scope="col" class="n" title=${about} key=${key}>${name}</th>`)}
        </tr></thead>
        <tbody>${streams.map((stream) => {
          const { name, text } = how(stream);
          return html`<tr key=${`${stream.from} ${stream.to} ${stream.domain}`} class=${name}>
            <th scope="row">${stream.from}</th><td>${stream.to}</td><td>${stream.domain || "–"}</td>
            <td><span class="badge ${name}"><i aria-hidden="true">${state(name).glyph}</i>${text}</span>
              ${stream.reason && html`<span class="reason">${stream.reason}</span>`}</td>
            <td class="n">${ago(stream.age_ms)}</td>
            <td class="n">${stream.lag_ms === undefined ? "–" : ago(stream.lag_ms)}</td>
            ${columns.map(([key]) => html`<${Count} key=${key} value=${stream[key]} />`)}
          </tr>`;
        })}</tbody></table></div>`}
  </section>`;
}

const kPeerStates = { fresh: "exact", asked: "unknown", late: "stale", refused: "degraded", unreachable: "unreachable" };

function Peer({ peer }) {
  const name = kPeerStates[peer.state] ?? "unknown";
  return html`<li>
    <span class="badge ${name}"><i aria-hidden="true">${state(name).glyph}</i>${peer.state}</span>
    <b>${peer.name || peer.kind}</b> <span class="quiet">${peer.address}${peer.version && `, ${peer.version}`}${
      peer.age_ms !== undefined && peer.state !== "fresh" ? `, answered ${ago(peer.age_ms)} ago` : ""}</span>
    ${peer.error && html`<span class="reason">${peer.error}</span>`}
  </li>`;
}

export function Peers({ fleet }) {
  const { peers, peers_total: total } = fleet;
  const late = peers.filter((peer) => peer.state !== "fresh");
  const fresh = peers.filter((peer) => peer.state === "fresh");
  const key = (peer) => peer.kind + peer.address;
  return html`<section aria-labelledby="peers-title">
    <h2 id="peers-title">Asked for this page <small>${count(total)} ${total === 1 ? "process" : "processes"}${
      late.length === 0 ? ", all answered" : ""}</small></h2>
    <div class="card peers">
      ${late.length > 0 && html`<ul>${late.map((peer) => html`<${Peer} key=${key(peer)} peer=${peer} />`)}</ul>`}
      ${fresh.length > 0 && html`<details><summary>${late.length > 0 ? `${fresh.length} that answered` : "Which ones"}${
        peers.length < total ? ` (${peers.length} of ${count(total)} are listed)` : ""}</summary>
        <ul>${fresh.map((peer) => html`<${Peer} key=${key(peer)} peer=${peer} />`)}</ul></details>`}
    </div>
  </section>`;
}
