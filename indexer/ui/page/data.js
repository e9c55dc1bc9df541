// What the process says, asked again and again while the page is looked at.

const kFleetEveryMs = 2000;
const kFirstAgainMs = 400;
const kDecisionsEveryMs = 4000;
const kAnswerWithinMs = 5000;
const kExplainedWithinMs = 15000;
export const kDecisionsShown = 16;

// Marks in names of others that turn the direction of writing or are not seen, which would make one name look like another
// (tools/kvatlas/table.h does the same).
const kNotShown = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const shown = (key, value) => (typeof value !== "string" ? value :
  value.replace(kNotShown, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`));

// `path` is relative to /ui/. A refusal is an Error with a status.
async function ask(path, options = {}) {
  const response = await fetch(new URL(path, document.baseURI), {
    cache: "no-store", signal: AbortSignal.timeout(kAnswerWithinMs), ...options });
  const body = await response.text().then((text) => JSON.parse(text, shown)).catch(() => ({}));
  if (response.ok) return body;
  const said = typeof body.error === "string" ? body.error : body.error?.message;
  throw Object.assign(new Error(said ?? `status ${response.status}`), { status: response.status });
}

export const askCell = (name) => ask(`fleet.json?cell=${encodeURIComponent(name)}`);
export const askSessions = (session) =>
  ask(`sessions.json${session ? `?session=${encodeURIComponent(session)}` : ""}`);
export const askExplain = (question) =>
  ask("explain", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(question),
    signal: AbortSignal.timeout(kExplainedWithinMs),
  });

// Points of all series, the latest `points`; grows by what is new.
class Series {
  charts = [];
  times = [];
  values = {};

  take(more) {
    this.charts = more.charts;
    this.times = [...this.times, ...more.t].slice(-more.points);
    for (const [key, values] of Object.entries(more.values)) {
      const known = this.values[key] ?? [];
      this.values[key] = [...known, ...values].slice(-more.points);
    }
  }
  last() {
    return this.times.at(-1) ?? 0;
  }
}

// Calls `changed(state)` with {fleet, series, decisions, error, at}: `error` says why the last answer is missing.
export class Poll {
  constructor(changed) {
    this.changed = changed;
    this.state = { fleet: null, series: new Series(), decisions: null, decisionsError: "", error: "", at: 0 };
    this.decisionsAt = 0;
    this.paused = false;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
    this.now();
  }

  pause(paused) {
    this.paused = paused;
    if (!paused) this.now();
  }

  now() {
    clearTimeout(this.timer);
    this.round().finally(() => {
      const fresh = this.state.fleet?.fresh ?? true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.next(), fresh ? kFleetEveryMs : kFirstAgainMs);
    });
  }

  next() {
    if (!this.paused && !document.hidden) this.now();
  }

  async round() {
    const state = { ...this.state };
    try {
      const [fleet, series] = await Promise.all([
        ask("fleet.json"),
        ask(`series.json?since=${state.series.last()}`),
      ]);
      state.fleet = fleet;
      state.series.take(series);
      state.error = "";
      state.at = Date.now();
    } catch (error) {
      state.error = error.status ? `refused: ${error.message}` : "no answer";
    }
    if (state.fleet?.decisions && Date.now() - this.decisionsAt >= kDecisionsEveryMs - 100) {
      this.decisionsAt = Date.now();
      try {
        state.decisions = (await ask(`../decisions?detail=1&max=${kDecisionsShown}`)).decisions;
        state.decisionsError = "";
      } catch (error) {
        state.decisionsError = error.message;
      }
    }
    this.state = state;
    this.changed(state);
  }
}
