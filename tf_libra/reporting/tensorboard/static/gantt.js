// Gantt charts of ranks; the charts of a plan share one scale.

import {h, s} from './dom.js';
import {time} from './format.js';

const WIDTH = 1000;
const ROW = 26;
const LABEL = 64;

export function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Chart of `rows` of ranks; `describe` names a bar, `below` are elements after the chart. */
export function gantt(chart, rows, longest, describe, below) {
  const height = rows.length * ROW;
  const at = (seconds) => LABEL + ((WIDTH - LABEL) * seconds) / (longest || 1);
  return h('figure', {class: 'gantt', 'data-chart': chart.title},
    h('figcaption', {}, `${capital(chart.title)}: ${time(chart.seconds)}`),
    s('svg', {viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': `${chart.title}, by rank`},
      rows.map((rank, row) => s('text', {x: 0, y: (row + 0.65) * ROW}, `rank ${rank}`)),
      s('line', {x1: at(chart.seconds), x2: at(chart.seconds), y1: 0, y2: height, class: 'end'}),
      chart.bars.map((bar) => s('rect', {
        class: bar.kind,
        x: at(bar.start_seconds),
        width: Math.max(at(bar.stop_seconds) - at(bar.start_seconds), 0.5),
        y: rows.indexOf(bar.device) * ROW + (bar.kind === 'all_reduce' ? 0.7 : 0.1) * ROW,
        height: (bar.kind === 'all_reduce' ? 0.2 : 0.6) * ROW,
      }, s('title', {}, `rank ${bar.device}, ${describe(bar)}, ${time(bar.start_seconds)} to ${time(bar.stop_seconds)}`)))),
    below);
}

/** Legend from [kind, text] pairs. */
export function ganttLegend(kinds) {
  return h('div', {class: 'key'}, kinds.map(([name, text]) => h('span', {}, h('i', {class: `swatch ${name}`}), text)));
}
