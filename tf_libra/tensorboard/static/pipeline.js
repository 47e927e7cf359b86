// A pipeline: what every rank computes when, predicted above measured, on one scale.

import {h, s} from './dom.js';
import {bytes, percent, short, strategy, time} from './format.js';

const WIDTH = 1000;
const ROW = 26;
const LABEL = 64;

/** The card of one pipeline, as the route `runs` describes it. */
export function pipelineCard(pipeline) {
  const longest = Math.max(...pipeline.charts.map((chart) => chart.seconds));
  return h('section', {class: 'card pipeline', 'data-function': pipeline.function},
    h('h2', {class: 'name'}, `${short(pipeline.function, 60)}: ${kind(pipeline)}`),
    h('p', {class: 'lead'}, `${capital(pipeline.bottleneck)}.`),
    h('table', {},
      h('thead', {}, h('tr', {}, ['stage', 'layers', 'ranks', 'forward', 'backward', 'parameters'].map((title) => h('th', {}, title)))),
      h('tbody', {}, pipeline.stages.map((stage, number) => h('tr', {},
        h('td', {}, String(number)),
        h('td', {class: 'name'}, short(stage.layers, 60)),
        h('td', {}, stage.ranks.join(', ')),
        h('td', {}, time(stage.forward_seconds)),
        h('td', {}, time(stage.backward_seconds)),
        h('td', {}, bytes(stage.parameter_bytes)))))),
    pipeline.charts.map((chart) => drawn(chart, longest)),
    legend(),
    h('p', {class: 'note'}, 'Forward and backward are of one microbatch, divided among the stage’s ranks.'),
    pipeline.notes.map((note) => h('p', {class: 'note name'}, note)));
}

function kind({stages, strategy: name, num_microbatches: count}) {
  const what = stages.length === 1 ? 'data parallelism' : `a pipeline of ${stages.length} stages`;
  return `${what} under ${strategy(name)}, ${count} microbatches`;
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function drawn(chart, longest) {
  const rows = chart.ranks.map(({rank}) => rank);
  const height = rows.length * ROW;
  const at = (seconds) => LABEL + ((WIDTH - LABEL) * seconds) / longest;
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
      }, s('title', {}, said(bar))))),
    h('ul', {class: 'bubbles'}, chart.ranks.map(({rank, idle_share: share, longest: bubble}) => h('li', {},
      `Rank ${rank} computes nothing for ${percent(share)}`,
      bubble === null ? '' : `; longest ${time(bubble.seconds)}, for ${bubble.why}`, '.'))));
}

function said(bar) {
  const what = bar.microbatch === null ? 'all-reduce' : `${bar.kind} of microbatch ${bar.microbatch}`;
  return `rank ${bar.device}, stage ${bar.stage}: ${what}, ${time(bar.start_seconds)} to ${time(bar.stop_seconds)}`;
}

function legend() {
  return h('div', {class: 'key'}, [['forward', 'forward'], ['backward', 'backward'], ['all_reduce', 'all-reduce']].map(([name, text]) =>
    h('span', {}, h('i', {class: `swatch ${name}`}), text)));
}
