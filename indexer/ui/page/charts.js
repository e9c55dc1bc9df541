// What happened in the last quarter of an hour: a chart for each group of figures, with one cursor for all. Until there is so much they begin
// at the left, and grow.

import { html, useEffect, useRef } from "./vendor/preact/preact.js";
import { withUnit } from "./format.js";

const kHeight = 150;
const kWindowS = 900;
// The first samples fill a minute.
const kFirstS = 60;
// The least that an axis goes up to, by its unit: no ticks between 0 and nothing.
const kHighest = { share: 1, ms: 0.1 };
// Steps of an axis that counts.
const kWhole = [1, 2, 5].flatMap((step) => Array.from({ length: 13 }, (_, power) => step * 10 ** power)).sort((a, b) => a - b);
// As the style sheet has them, in the order of the series of a chart.
const kColours = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// From the first sample on, or the last 15 minutes.
function windowOf(times) {
  if (times.length === 0) return [Date.now() / 1000 - kFirstS, Date.now() / 1000];
  const end = times.at(-1), begin = Math.max(times[0], end - kWindowS);
  return [begin, Math.max(end, begin + kFirstS)];
}

// A gap where nothing was known stays one.
function stacked(columns) {
  const sum = [];
  return columns.map((column, k) =>
    column.map((value, i) => {
      if (value === null) return null;
      sum[i] = (sum[i] ?? 0) + value;
      return value === 0 && k > 0 ? null : sum[i];  // a layer that is not there has no line
    }));
}

function options(chart, width, times) {
  const axis = {
    stroke: colour("--quiet"),
    font: "11px system-ui, sans-serif",
    ticks: { show: false },
    grid: { stroke: colour("--line"), width: 1 },
  };
  const series = chart.series.map(({ label }, i) => ({
    label,
    stroke: colour(kColours[i]),
    fill: chart.stacked && i === 0 ? colour(kColours[i] + "-area") : undefined,
    width: 1.5,
    points: { show: false },
    spanGaps: false,
  }));
  const counts = !(chart.unit in kHighest);
  return {
    width,
    height: kHeight,
    padding: [8, 4, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "kvatlas" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { time: true, range: windowOf(times) },
      y: { range: (_, low, high) => [0, chart.unit === "share" ? 1 : Math.max((high ?? 0) * 1.1, kHighest[chart.unit] ?? 1)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 80,
        values: (_, ticks, __, ___, step) => ticks.map((t) => new Date(t * 1000).toTimeString().slice(0, step < 60 ? 8 : 5)) },
      { ...axis, size: 52, space: 34, ...(counts ? { incrs: kWhole } : {}), values: (_, ticks) => ticks.map((v) => withUnit(v, chart.unit)) },
    ],
    series: [{}, ...series],
    // Each area reaches down to the one below it.
    bands: chart.stacked ? chart.series.slice(1).map((_, i) => ({
      series: [i + 2, i + 1], fill: colour(kColours[i + 1] + "-area") })) : [],
  };
}

function Plot({ chart, series, at, dark }) {
  const place = useRef(null);
  const plot = useRef(null);
  const columns = () => {
    const values = chart.series.map(({ key }) => series.values[key] ?? []);
    const shown = chart.stacked ? stacked(values) : values;
    const times = series.times.map((ms) => ms / 1000);
    return { times, shown };
  };
  const draw = () => {
    plot.current?.destroy();
    const { times, shown } = columns();
    const width = Math.max(place.current.clientWidth, 120);
    plot.current = new uPlot(options(chart, width, times), [times, ...shown], place.current);
  };
  useEffect(() => {
    draw();
    const watch = new ResizeObserver(() => {
      if (plot.current && place.current.clientWidth !== plot.current.width) draw();
    });
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [dark, chart.id, chart.series.length]);
  useEffect(() => {
    if (!plot.current) return;
    const { times, shown } = columns();
    const [min, max] = windowOf(times);
    plot.current.setData([times, ...shown], false);
    plot.current.setScale("x", { min, max });
  }, [at]);
  return html`<div class="plot" ref=${place} aria-hidden="true"></div>`;
}

const latest = (values) => {
  for (let i = (values ?? []).length - 1; i >= 0 && i >= values.length - 5; --i)
    if (values[i] !== null) return values[i];
  return null;
};

function Chart({ chart, series, at, dark }) {
  const now = chart.series.map(({ key, label }) => ({ label, value: latest(series.values[key]) }));
  return html`<figure class="chart card" aria-labelledby=${`chart-${chart.id}`}>
    <figcaption>
      <h3 id=${`chart-${chart.id}`}>${chart.title}</h3>
      <p class="unseen">${chart.about}</p>
    </figcaption>
    <${Plot} ...${{ chart, series, at, dark }} />
    <ul class="legend">
      ${now.map(({ label, value }, i) => html`<li key=${label}>
        <i class=${`swatch s${i + 1}`} aria-hidden="true"></i>${label} <b>${withUnit(value, chart.unit)}</b>
      </li>`)}
    </ul>
  </figure>`;
}

export function Charts({ series, at, dark }) {
  const { times } = series;
  const whole = times.length > 0 && times.at(-1) - times[0] >= kWindowS * 990;
  return html`<section aria-labelledby="charts-title">
    <h2 id="charts-title">${whole ? "The last 15 minutes" : "The first minutes"}</h2>
    <div class="charts">
      ${series.charts.map((chart) => html`<${Chart} key=${chart.id} ...${{ chart, series, at, dark }} />`)}
    </div>
  </section>`;
}
