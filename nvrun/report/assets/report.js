"use strict";
// Draws the charts of the page by plotly.js, in the colours of the page, light or dark.
(() => {
  const { charts, events } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 760px)");
  // Okabe and Ito's colours, told apart also by the colour-blind; lighter ones on dark.
  const LINES = {
    light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#6a3d9a", "#555555"],
    dark: ["#56b4e9", "#ff9e4a", "#2fd6a1", "#e59bc4", "#f0e442", "#8fb8ff", "#c5a3ff", "#bbbbbb"],
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Seconds read badly in a run of hours.
  const longest = Math.max(0, ...charts.filter((chart) => chart.x !== "bytes")
    .flatMap((chart) => [...chart.series.map((series) => series.x.at(-1) ?? 0), ...chart.bars.map((bar) => bar.ended)]));
  const [unit, seconds] = longest > 7200 ? ["h", 3600] : longest > 900 ? ["min", 60] : ["s", 1];
  const scaled = (time) => time / seconds;

  const hover = () => ({ bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } });

  // Of many lines those that stand out are in colour, before a grey band of the others.
  const isLoud = (series) => series.loud !== false;
  const legendEntries = (chart) => chart.series.filter(isLoud).length + (chart.series.every(isLoud) ? 0 : 1);

  function lines(chart) {
    const quiet = chart.series.filter((series) => !isLoud(series));
    const shown = chart.series.filter(isLoud);
    const palette = LINES[dark.matches ? "dark" : "light"];
    const inColour = (series) => palette[shown.indexOf(series) % palette.length];
    return [...quiet, ...shown].map((series) => ({
      type: "scatter", name: series.name, x: chart.x === "bytes" ? series.x : series.x.map(scaled), y: series.y,
      mode: isLoud(series) && (chart.x === "bytes" || series.x.length < 40) ? "lines+markers" : "lines",
      line: isLoud(series) ? { width: 1.8, color: inColour(series) } : { width: 1, color: colour("quiet") }, marker: { size: 4 },
      opacity: isLoud(series) ? 1 : 0.5, showlegend: isLoud(series), meta: series.name,
      hovertemplate: `%{meta}: %{y:.4~g} ${chart.unit}<extra></extra>`,
    })).concat(quiet.length ? [{
      type: "scatter", mode: "lines", x: [null], y: [null], line: { width: 1, color: colour("quiet") },
      name: shown.length ? `${quiet.length} others` : `all ${quiet.length}, alike`, hoverinfo: "skip",
    }] : []);
  }

  function bars(chart) {
    const paint = { ok: colour("good"), failed: colour("bad"), stopped: colour("quiet") };
    const rows = chart.bars;
    return [
      {
        type: "bar", orientation: "h", y: rows.map((row) => row.name), base: rows.map((row) => scaled(row.begun)),
        x: rows.map((row) => scaled(row.ended - row.begun)), marker: { color: rows.map((row) => paint[row.outcome]), opacity: 0.75 },
        customdata: rows.map((row) => [row.begun, row.ended, row.text]), name: "runs",
        hovertemplate: "%{customdata[0]:.2f} s to %{customdata[1]:.2f} s, %{customdata[2]}<extra></extra>",
      },
      {
        type: "scatter", mode: "markers", name: "first output",
        y: rows.filter((row) => row.first_output != null).map((row) => row.name),
        x: rows.filter((row) => row.first_output != null).map((row) => scaled(row.first_output)),
        marker: { symbol: "diamond", size: 8, color: colour("ink") }, hovertemplate: `first output %{x:.2f} ${unit}<extra></extra>`,
      },
    ];
  }

  function marks(chart) {
    if (chart.x === "bytes") return {};
    const paint = { start: colour("quiet"), restart: colour("warn"), failure: colour("bad"), end: colour("quiet") };
    return {
      shapes: events.map((event) => ({
        type: "line", xref: "x", yref: "paper", x0: scaled(event.at), x1: scaled(event.at), y0: 0, y1: 1,
        line: { color: paint[event.kind], width: 1, dash: "dot" },
      })),
      annotations: events.filter((event) => event.kind !== "start").map((event) => ({
        x: scaled(event.at), y: 1, xref: "x", yref: "paper", text: event.text, showarrow: false, yanchor: "bottom",
        font: { size: 11, color: paint[event.kind] },
      })),
    };
  }

  function layout(chart) {
    const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true };
    const x = { ...axis, title: { text: unit, standoff: 4 }, range: [0, scaled(longest) * 1.03], fixedrange: narrow.matches };
    if (chart.x === "bytes") {
      const sizes = ["8 B", "128 B", "1 KiB", "16 KiB", "256 KiB", "1 MiB", "16 MiB", "256 MiB", "1 GiB", "8 GiB"];
      const powers = [3, 7, 10, 14, 18, 20, 24, 28, 30, 33];
      Object.assign(x, { type: "log", title: undefined, range: undefined, tickvals: powers.map((n) => 2 ** n), ticktext: sizes });
    }
    const y = { ...axis, rangemode: "tozero", fixedrange: true };
    if (chart.top != null) y.range = [0, chart.top * 1.04];
    if (chart.x === "bars") Object.assign(y, { autorange: "reversed", tickfont: { size: 11 } });
    const legend = chart.x !== "bars" && chart.series.length > 1;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), size: 12, family: "system-ui, sans-serif" }, hoverlabel: hover(),
      margin: { l: 44, r: 12, t: 18, b: 36 }, xaxis: x, yaxis: y, showlegend: legend,
      legend: { orientation: "h", y: -0.28, font: { size: 11 }, itemwidth: 30 },
      hovermode: chart.x === "bars" || chart.series.length > 8 ? "closest" : "x unified", bargap: 0.35, ...marks(chart),
    };
  }

  function height(chart) {
    if (chart.x === "bars") return Math.max(120, 60 + 22 * chart.bars.length);
    const columns = narrow.matches ? 2 : 4;
    const rows = chart.series.length > 1 ? Math.ceil(legendEntries(chart) / columns) : 0;
    return (chart.x === "bytes" ? 320 : 230) + 20 * rows;
  }

  function draw() {
    for (const chart of charts) {
      const place = document.getElementById(`chart-${chart.id}`);
      if (!place) continue;
      place.style.height = `${height(chart)}px`;
      const data = chart.x === "bars" ? bars(chart) : lines(chart);
      Plotly.react(place, data, layout(chart), { responsive: true, displayModeBar: false });
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
