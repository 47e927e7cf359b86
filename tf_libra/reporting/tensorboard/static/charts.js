// Charts drawn by Plotly, which is loaded with the first chart.

import {script} from './api.js';
import {color} from './theme.js';

let loading = null;

function plotly() {
  loading ??= script('plotly.min.js').then(() => window.Plotly).catch((error) => {
    loading = null; // the next chart tries again
    throw error;
  });
  return loading;
}

/** Escapes a name, as Plotly interprets some HTML in texts. */
export function plain(text) {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

/** Colour of a thread count, from few to many threads. */
export function threadColor(threads, all) {
  const names = ['r-first', 'r-second', 'r-third', 'r-fourth', 'r-fifth'];
  const position = all.length < 2 ? 0 : all.indexOf(threads) / (all.length - 1);
  const last = Math.min(all.length, names.length) - 1;
  return color(names[Math.round(position * Math.max(last, 0))]);
}

function axis(options) {
  const grid = color('grid');
  return {
    gridcolor: grid,
    zerolinecolor: grid,
    linecolor: color('line'),
    tickcolor: color('line'),
    automargin: true,
    ...options,
    title: {text: options?.title ?? '', font: {size: 12, color: color('muted')}, standoff: 8},
  };
}

/** Draws into `element`; `x` and `y` are Plotly's axis options with a plain `title`. */
export async function chart(element, traces, {x, y, ...layout}) {
  const Plotly = await plotly();
  if (!element.isConnected) return;
  await Plotly.react(
    element,
    traces,
    {
      autosize: true,
      margin: {l: 56, r: 16, t: 12, b: 72},
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      font: {family: 'Roboto, "Segoe UI", "Helvetica Neue", Arial, sans-serif', size: 12,
        color: color('text')},
      legend: {orientation: 'h', yref: 'container', y: 0, yanchor: 'bottom', x: 0, font: {size: 12}},
      hoverlabel: {bgcolor: color('raised'), bordercolor: color('line'),
        font: {color: color('text'), size: 12}, align: 'left'},
      xaxis: axis(x),
      yaxis: axis(y),
      ...layout,
    },
    {displaylogo: false, responsive: true, displayModeBar: false},
  );
  element.dataset.drawn = 'true';
}
