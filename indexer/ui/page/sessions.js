// What of which session is at which worker, and what its next turn would compute.

import { html, useState } from "./vendor/preact/preact.js";
import { askSessions } from "./data.js";
import { ago, count, plural, workerName } from "./format.js";

const kWorkersShown = 4;

function Where({ at }) {
  if (at.length === 0) return html`<span class="quiet">nowhere</span>`;
  const more = at.length - kWorkersShown;
  return html`${at.slice(0, kWorkersShown).map(({ worker, rank, tokens }, i) =>
    html`${i > 0 && ", "}${workerName(worker, rank)} <span class="quiet">${count(tokens)}</span>`)}${
    more > 0 && html`<span class="quiet"> and ${count(more)} more</span>`}`;
}

function Answer({ answer, asked }) {
  const { sessions, failed } = answer;
  return html`<div>
    ${sessions.length === 0 &&
      html`<p class="quiet">No frontend told of ${asked ? "this" : "any"} session in the last ten minutes.</p>`}
    ${sessions.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Sessions"><table>
      <thead><tr><th scope="col">Session</th><th scope="col">Model</th><th scope="col">Last at</th><th scope="col" class="n">Age</th>
        <th scope="col" class="n">Prompts</th><th scope="col" class="n">Tokens</th><th scope="col" class="n">Next turn computes</th>
        <th scope="col">Tokens at workers</th></tr></thead>
      <tbody>${sessions.map((s) => html`<tr key=${s.cell + s.model + s.tenant + s.session}>
        <th scope="row"><code>${asked || s.session}</code></th>
        <td>${s.model}${s.tenant && html` <span class="quiet">${s.tenant}</span>`}</td>
        <td>${workerName(s.worker, s.rank)} <span class="quiet">${s.cell}</span></td>
        <td class="n">${ago(s.age_ms)}</td><td class="n">${count(s.prompts)}</td><td class="n">${count(s.tokens)}</td>
        <td class="n">${count(s.next_turn_computes)}</td><td><${Where} at=${s.at} /></td></tr>`)}
      </tbody></table></div>`}
    ${answer.cells_asked < answer.cells && html`<p class="quiet">${plural(answer.cells_asked, "cell")} of ${count(answer.cells)} were asked.</p>`}
    ${failed.length > 0 && html`<p class="wrong">${failed[0]}${failed.length > 1 && `, and ${plural(failed.length - 1, "other cell")}`}</p>`}
  </div>`;
}

export function Sessions() {
  const [session, setSession] = useState("");
  const [result, setResult] = useState({});
  const ask = async (event) => {
    event.preventDefault();
    const asked = session.trim();
    setResult({ ...result, waiting: true });
    try {
      setResult({ answer: await askSessions(asked), asked });
    } catch (error) {
      setResult({ error: error.message });
    }
  };
  return html`<section aria-labelledby="sessions-title">
    <h2 id="sessions-title">Sessions <small>what of them is where, and what their next turns would compute</small></h2>
    <div class="card sessions">
      <form onSubmit=${ask}>
        <label>Session, as clients name it <input value=${session} placeholder="the latest of all"
          onInput=${(e) => setSession(e.target.value)} spellcheck="false" /></label>
        <button type="submit" disabled=${result.waiting}>Look</button>
      </form>
      <div aria-live="polite">
        ${result.error && html`<p class="wrong">${result.error}</p>`}
        ${result.answer && html`<${Answer} ...${result} />`}
      </div>
    </div>
  </section>`;
}
