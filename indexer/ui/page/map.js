// The map: region, cell, worker. A tile's fill is the share of its pool in use, its border the trust, hatched where it is in no answer.

import { html, useEffect, useRef, useState } from "./vendor/preact/preact.js";
import { askCell } from "./data.js";
import { ago, count, num, percent, plural, poolUsed, short, state, workerName } from "./format.js";

// From so many cells without workers on they are drawn small.
const kDenseFrom = 400;
// Up to so many workers they are drawn large.
const kLargeUpTo = 192;

// A worker's tile, which comes as an array.
const worker = ([name, rank, trust, masked, connected, age_ms, blocks, used, free, running, waiting]) => ({
  name: workerName(name, rank), trust, masked, connected, age_ms, blocks, running, waiting,
  used: poolUsed(used, free), used_blocks: used, free_blocks: free,
});

function describeWorker(w, cell) {
  const how = w.masked ? `silent for ${ago(w.age_ms)}, in no answer`
    : !w.connected ? `disconnected, last heard ${ago(w.age_ms)} ago`
    : `${state(w.trust).word}, heard ${ago(w.age_ms)} ago`;
  const pool = w.used === null ? "pool not told" : `pool ${percent(w.used)} in use`;
  return `worker ${w.name} of cell ${cell.name}: ${how}, ${pool}, ` +
    `${num(w.running)} running, ${num(w.waiting)} waiting`;
}

function describeCell(cell) {
  const used = poolUsed(cell.used_blocks, cell.free_blocks);
  const silent = num(cell.workers_silent);
  return `cell ${cell.name}: ${state(cell.state).word}` +
    (cell.state === "exact" ? "" : `, last heard ${ago(cell.age_ms)} ago`) +
    `, ${plural(num(cell.workers), "worker")}` + (silent ? `, ${silent} silent` : "") +
    (used === null ? "" : `, pools ${percent(used)} in use`);
}

// One stop for Tab in the whole map; arrows move among its tiles.
function onArrow(event) {
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up", Home: "first", End: "last" };
  const move = moves[event.key];
  const from = event.target.closest("[data-tile]");
  if (move === undefined || !from) return;
  const tiles = [...event.currentTarget.querySelectorAll("[data-tile]")];
  const i = tiles.indexOf(from);
  let to = null;
  if (typeof move === "number") to = tiles[i + move];
  else if (move === "first") to = tiles[0];
  else if (move === "last") to = tiles.at(-1);
  else to = nextRow(tiles, i, move === "down" ? 1 : -1);
  event.preventDefault();
  if (to) focusTile(event.currentTarget, to);
}

// The tile of the next row that is nearest across.
function nextRow(tiles, i, step) {
  const from = tiles[i].getBoundingClientRect();
  let best = null, row = null;
  for (let k = i + step; k >= 0 && k < tiles.length; k += step) {
    const box = tiles[k].getBoundingClientRect();
    if (step * (box.top - from.top) < 2) continue;
    row ??= box.top;
    if (Math.abs(box.top - row) > 2) break;
    const off = Math.abs(box.left - from.left);
    if (best && off >= best.off) continue;
    best = { tile: tiles[k], off };
  }
  return best?.tile;
}

function focusTile(map, tile) {
  map.querySelector('[data-tile][tabindex="0"]')?.setAttribute("tabindex", "-1");
  tile.setAttribute("tabindex", "0");
  tile.focus();
}

const fill = (used) => ({ "--used": used === null ? "0%" : `${Math.round(used * 100)}%` });

function Tile({ name, kind, of, used, trust, masked, label, chosen, choose }) {
  const classes = ["tile", kind, trust, masked ? "masked" : "", used === null ? "untold" : "", chosen ? "chosen" : ""];
  return html`<button type="button" class=${classes.filter(Boolean).join(" ")} style=${fill(used)} tabindex="-1"
    data-tile=${of} data-name=${name} aria-label=${label} title=${label} aria-pressed=${chosen} onClick=${choose}></button>`;
}

// A cell with its workers.
function CellBlock({ cell, chosen, choose }) {
  const { glyph } = state(cell.state);
  const used = poolUsed(cell.used_blocks, cell.free_blocks);
  return html`<li class="cell ${cell.state}" data-cell=${cell.name}>
    <button type="button" class="cell-name ${chosen === cell.name ? "chosen" : ""}" data-tile="cell" tabindex="-1"
      aria-pressed=${chosen === cell.name} onClick=${() => choose(cell.name)}>
      <span class="glyph" aria-hidden="true">${glyph}</span><span class="label">${cell.name}</span>
      <small>${used === null ? "" : percent(used)}</small><span class="unseen">, ${describeCell(cell)}</span>
    </button>
    <div class="tiles">
      ${cell.tiles.map((tile) => {
        const w = worker(tile);
        return html`<${Tile} key=${w.name} kind="worker" of="worker" name=${w.name} used=${w.used}
          trust=${cell.state === "unreachable" ? "stale" : w.trust}
          masked=${w.masked || !w.connected} label=${describeWorker(w, cell)}
          choose=${() => choose(cell.name)} />`;
      })}
    </div>
  </li>`;
}

function Region({ name, cells, whole, chosen, choose }) {
  const exact = cells.filter((cell) => cell.state === "exact").length;
  const title = name || (whole ? "All cells" : "No region named");
  return html`<section class="region" aria-label=${`Region ${title}`}>
    <h3>${title} <small>${count(exact)} of ${plural(cells.length, "cell")} exact</small></h3>
    <ul class=${cells.some((cell) => cell.tiles) ? "cells" : "cells bare"}>
      ${cells.map((cell) => cell.tiles
        ? html`<${CellBlock} key=${cell.name} ...${{ cell, chosen, choose }} />`
        : html`<li key=${cell.name} data-cell=${cell.name} class=${cell.state}>
            <${Tile} kind="cell" of="cell" name=${cell.name} used=${poolUsed(cell.used_blocks, cell.free_blocks)}
              trust=${cell.state} masked=${cell.state === "stale" || cell.state === "unreachable"}
              label=${describeCell(cell)} chosen=${chosen === cell.name} choose=${() => choose(cell.name)} />
          </li>`)}
    </ul>
  </section>`;
}

// What is known of one cell, with its workers; those that the map does not have are asked for.
function CellDetail({ cell, at, close }) {
  const [asked, setAsked] = useState(null);
  useEffect(() => {
    if (cell.tiles) return undefined;
    let gone = false;
    askCell(cell.name)
      .then(({ cells }) => !gone && setAsked(cells[0]))
      .catch(() => !gone && setAsked(null));
    return () => { gone = true; };
  }, [cell.name, at]);
  const tiles = cell.tiles ?? (asked?.name === cell.name ? asked.tiles : null);
  const rows = [
    ["State", `${state(cell.state).word}${cell.why ? `: ${cell.why}` : ""}`],
    ["Last heard", `${ago(cell.age_ms)} ago`],
    ["Address", cell.address || "–"],
    ["Replicas", short(cell.replicas)],
    ["Version", cell.version || "–"],
    ["Blocks indexed", num(cell.blocks) ? short(num(cell.blocks)) : "–"],
    ["Running, waiting", `${short(num(cell.running))}, ${short(num(cell.waiting))}`],
  ];
  return html`<aside class="detail" aria-label=${`Cell ${cell.name}`}>
    <div class="head"><h3><span aria-hidden="true">${state(cell.state).glyph}</span> Cell ${cell.name}</h3>
      <button type="button" class="plain" onClick=${close}>Close</button></div>
    <dl>${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${tiles
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`Workers of cell ${cell.name}`}><table>
        <caption class="unseen">Workers of cell ${cell.name}</caption>
        <thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="n">Heard</th>
          <th scope="col" class="n">Pool</th><th scope="col" class="n">Blocks</th><th scope="col" class="n">Run</th>
          <th scope="col" class="n">Wait</th></tr></thead>
        <tbody>${tiles.map(worker).map((w) => html`<tr key=${w.name}>
          <th scope="row">${w.name}</th>
          <td>${w.masked ? "silent" : w.connected ? state(w.trust).word : "disconnected"}</td>
          <td class="n">${ago(w.age_ms)}</td><td class="n">${w.used === null ? "–" : percent(w.used)}</td>
          <td class="n">${short(num(w.blocks))}</td><td class="n">${short(num(w.running))}</td>
          <td class="n">${short(num(w.waiting))}</td></tr>`)}</tbody></table></div>
        ${cell.seen_ms > 5000 && html`<p class="quiet">Of its workers, what was ${ago(cell.seen_ms)} ago.</p>`}`
      : html`<p class="quiet">Its leaf has not told of its workers yet.</p>`}
  </aside>`;
}

function Legend() {
  return html`<ul class="legend map-legend" aria-label="Legend">
    <li><i class="tile exact demo" style=${fill(0.6)} aria-hidden="true"></i>fill: pool in use</li>
    ${["exact", "degraded", "stale", "unreachable"].map((name) => html`<li key=${name}>
      <i class="tile ${name} demo" style=${fill(0)} aria-hidden="true"></i>${state(name).word}</li>`)}
    <li><i class="tile exact untold demo" style=${fill(0)} aria-hidden="true"></i>dotted: pool not told</li>
    <li><i class="tile exact masked demo" style=${fill(0.6)} aria-hidden="true"></i>hatched: in no answer</li>
  </ul>`;
}

export function FleetMap({ fleet }) {
  const [chosen, setChosen] = useState(null);
  const [wanted, setWanted] = useState("");
  const [unwell, setUnwell] = useState(false);
  const map = useRef(null);
  const text = wanted.trim().toLowerCase();
  const isUnwell = (cell) => cell.state !== "exact" || num(cell.workers_silent) > 0;
  const shown = fleet.cells.filter((cell) =>
    (!text || cell.name.toLowerCase().includes(text)) && (!unwell || isUnwell(cell)));
  const regions = new Map();
  for (const cell of shown) {
    if (!regions.has(cell.region)) regions.set(cell.region, []);
    regions.get(cell.region).push(cell);
  }
  const tiles = shown.reduce((sum, cell) => sum + (cell.tiles?.length ?? 0), 0);
  const large = tiles > 0 && tiles <= kLargeUpTo;
  const dense = shown.length >= kDenseFrom && !shown.some((cell) => cell.tiles);
  // Exactly one tile is a stop of Tab, whichever are drawn.
  useEffect(() => {
    if (map.current && !map.current.querySelector('[data-tile][tabindex="0"]'))
      map.current.querySelector("[data-tile]")?.setAttribute("tabindex", "0");
  });
  const detail = fleet.cells.find((cell) => cell.name === chosen);
  const names = [...regions.keys()].sort();
  return html`<section aria-labelledby="map-title" class="map-section">
    <div class="heading"><h2 id="map-title">The map</h2>
      <div class="tools">
        <label><span class="unseen">Show cells whose name has</span>
          <input type="search" placeholder="find a cell" value=${wanted} onInput=${(e) => setWanted(e.target.value)} /></label>
        <label class="check"><input type="checkbox" checked=${unwell} onChange=${(e) => setUnwell(e.target.checked)} />
          not well only</label>
      </div>
    </div>
    <div class="card map ${detail ? "with-detail" : ""}">
      <div class="regions ${dense ? "dense" : large ? "large" : ""}" ref=${map} role="group" onKeyDown=${onArrow}
        aria-label="Cells and workers: arrow keys move, Enter shows a cell">
        ${names.map((name) => html`<${Region} key=${name} name=${name} cells=${regions.get(name)}
          whole=${names.length === 1} chosen=${chosen} choose=${setChosen} />`)}
        ${shown.length === 0 && html`<p class="quiet">${fleet.cells.length === 0
          ? "No cell is known yet." : "No such cell."}</p>`}
      </div>
      ${detail && html`<${CellDetail} cell=${detail} at=${fleet.now_ms} close=${() => setChosen(null)} />`}
      <${Legend} />
    </div>
  </section>`;
}
