// Where is a prompt cached? Block by block, worker by worker.

import { html, useState } from "./vendor/preact/preact.js";
import { askExplain } from "./data.js";
import { plural, short, workerName } from "./format.js";

const kExample = "for example: Summarize the minutes of yesterday's meeting in three sentences, and name who does what by when.";

// In `tiers` of an answer a letter a block: the nearest tier that has it.
const kTiers = { d: "device", h: "host", k: "disk", x: "external" };

// "1 2, 3" or "[1,2,3]" → [1, 2, 3]; null: other text.
export function tokenIds(text) {
  const parts = text.replace(/[[\]]/g, " ").split(/[\s,]+/).filter(Boolean);
  return parts.length > 0 && parts.every((part) => /^\d+$/.test(part)) ? parts.map(Number) : null;
}

// "ddd..dh" → [{tier: "d", from: 0, count: 3}, …]
export function runs(tiers) {
  const found = [];
  for (let i = 0; i < tiers.length; ++i) {
    if (found.at(-1)?.tier === tiers[i]) found.at(-1).count += 1;
    else found.push({ tier: tiers[i], from: i, count: 1 });
  }
  return found;
}

// Blocks that are missing before one that is there are a hole; after the last one they are simply not there.
function Strip({ worker, blocks }) {
  const held = worker.tiers.replace(/\.+$/, "").length;
  const parts = runs(worker.tiers).map((run) => ({
    ...run, kind: run.tier === "." ? (run.from < held ? "hole" : "none") : kTiers[run.tier] }));
  const said = parts.filter(({ kind }) => kind !== "none")
    .map(({ kind, from, count }) => `${kind === "hole" ? "missing" : kind} ${from} to ${from + count - 1}`).join(", ");
  return html`<span class="strip" role="img" aria-label=${said || "none of its blocks"} title=${said}>
    ${parts.map(({ kind, from, count }) =>
      html`<i key=${from} class=${kind} style=${{ width: `${(100 * count) / blocks}%` }}></i>`)}
  </span>`;
}

function Answer({ answer }) {
  if (answer.workers.length === 0)
    return html`<p class="quiet">No worker has any of its ${plural(answer.blocks, "block")}.</p>`;
  return html`<div>
    <p>${plural(answer.tokens, "token")} in ${plural(answer.blocks, "block")} of ${answer.block_size}. ${
      answer.diverges_at === null ? html`<b>The whole prompt is cached somewhere.</b>`
        : html`No worker can reuse more than <b>${plural(answer.diverges_at, "block")}</b>: there it diverges from all that is cached.`}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Blocks by worker"><table class="explained">
      <thead><tr><th scope="col">Worker</th><th scope="col" class="n">Reusable</th><th scope="col">Blocks 0 to ${answer.blocks - 1}</th></tr></thead>
      <tbody>${answer.workers.map((w) => html`<tr key=${w.cell + w.worker + w.rank}>
        <th scope="row">${workerName(w.worker, w.rank)} <span class="quiet">${w.cell}</span></th>
        <td class="n">${short(w.overlap)}</td><td class="wide"><${Strip} worker=${w} blocks=${answer.blocks} /></td></tr>`)}
      </tbody></table></div>
    <ul class="legend" aria-label="Tiers">
      ${[...Object.values(kTiers), "hole"].map((kind) =>
        html`<li key=${kind}><i class="swatch ${kind}" aria-hidden="true"></i>${kind}</li>`)}
    </ul>
  </div>`;
}

export function Explain({ fleet }) {
  const [model, setModel] = useState("");
  const [prompt, setPrompt] = useState("");
  const [result, setResult] = useState({});
  const { models } = fleet;
  if (!fleet.explain)
    return html`<section aria-labelledby="explain-title">
      <h2 id="explain-title">Explain a prompt</h2>
      <p class="card empty">Off: it shows what is cached. A process that listens on loopback alone has it; elsewhere
        <code>--ui_explain</code> turns it on.</p></section>`;
  const ask = async (event) => {
    event.preventDefault();
    setResult({ waiting: true });
    const tokens = tokenIds(prompt);
    const question = { model: model || models[0] || "", ...(tokens ? { tokens } : { text: prompt }) };
    try {
      setResult({ answer: await askExplain(question) });
    } catch (error) {
      setResult({ error: error.message });
    }
  };
  return html`<section aria-labelledby="explain-title">
    <h2 id="explain-title">Explain a prompt <small>where it is cached, block by block</small></h2>
    <div class="card explain">
      <form onSubmit=${ask}>
        <label>Model <input list="models" value=${model} placeholder=${models[0] ?? "model"}
          onInput=${(e) => setModel(e.target.value)} /></label>
        <datalist id="models">${models.map((name) => html`<option value=${name} />`)}</datalist>
        <label class="prompt">Prompt, as text or as token ids
          <textarea rows="3" placeholder=${kExample} value=${prompt} onInput=${(e) => setPrompt(e.target.value)} spellcheck="false"></textarea></label>
        <button type="submit" disabled=${!prompt.trim() || result.waiting}>Explain</button>
      </form>
      <div aria-live="polite">
        ${result.waiting && html`<p class="quiet">Asking…</p>`}
        ${result.error && html`<p class="wrong">${result.error}</p>`}
        ${result.answer && html`<${Answer} answer=${result.answer} />`}
      </div>
    </div>
  </section>`;
}
