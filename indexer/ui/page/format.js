// Numbers, times and names as people read them.

// A count, which comes as text where it is beyond 2^53.
export const num = (value) => (typeof value === "string" ? Number(value) : (value ?? 0));

const kSteps = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 1234567 → "1.23 M": three digits, as many as are read at a glance.
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [step, unit] of kSteps) {
    if (size >= step * 0.9995) return `${digits(value / step)} ${unit}`;
  }
  return digits(value);
}

// A count of things that one can point at: in full up to a million.
export const count = (value) => (Math.abs(value) < 1e6 ? Math.round(value).toLocaleString("en") : short(value));

function digits(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : "–");

export function ago(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120e3) return `${Math.floor(ms / 1000)} s`;
  if (ms < 7200e3) return `${Math.floor(ms / 60e3)} min`;
  return `${Math.floor(ms / 3600e3)} h`;
}

export function withUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return percent(value);
  if (unit === "ms") return value >= 1000 ? `${digits(value / 1000)} s` : `${digits(value)} ms`;
  return short(value) + (unit === "1/s" ? "/s" : "");
}

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export const workerName = (name, rank) => (rank ? `${name}.${rank}` : name);

// Share of the pool that is in use; null: not told.
export function poolUsed(used, free) {
  const all = num(used) + num(free);
  return num(used) < 0 || all <= 0 ? null : num(used) / all;
}

// The shape and the word of a state: colour is never alone.
export const kStates = {
  exact: { glyph: "●", word: "exact" },
  unknown: { glyph: "◌", word: "not asked yet" },
  degraded: { glyph: "◐", word: "degraded" },
  stale: { glyph: "○", word: "stale" },
  unreachable: { glyph: "✕", word: "unreachable" },
};
export const state = (name) => kStates[name] ?? kStates.unknown;
