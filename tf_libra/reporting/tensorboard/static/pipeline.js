// Card of a pipeline: stages, and the activity of every rank.

import {h} from './dom.js';
import {bytes, percent, short, strategy, time} from './format.js';
import {capital, gantt, ganttLegend} from './gantt.js';

/** Card of one pipeline, from the answer of `runs`. */
export function pipelineCard(pipeline) {
  const longest = Math.max(...pipeline.charts.map((chart) => chart.seconds));
  return h('section', {class: 'card staged pipeline', 'data-function': pipeline.function},
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
    pipeline.charts.map((chart) => gantt(chart, chart.ranks.map(({rank}) => rank), longest, describe, bubbles(chart))),
    ganttLegend([['forward', 'forward'], ['backward', 'backward'], ['gradients', 'gradients of all microbatches'], ['all_reduce', 'all-reduce'], ['update', 'update']]),
    h('p', {class: 'note'}, 'Forward and backward times are of one microbatch, divided among the ranks of the stage.'),
    pipeline.notes.map((note) => h('p', {class: 'note name'}, note)));
}

function kind({stages, strategy: name, num_microbatches: count}) {
  const what = stages.length === 1 ? 'data parallelism' : `a pipeline of ${stages.length} stages`;
  return `${what} under ${strategy(name)}, ${count} microbatches`;
}

function bubbles(chart) {
  return h('ul', {class: 'bubbles'}, chart.ranks.map(({rank, idle_share: share, longest: bubble}) => h('li', {},
    `Rank ${rank} is idle for ${percent(share)}`,
    bubble === null ? '' : `; longest bubble ${time(bubble.seconds)}, for ${bubble.why}`, '.')));
}

function describe(bar) {
  const kind = bar.kind.replace('_', '-');
  const what = bar.microbatch === null ? kind : `${kind} of microbatch ${bar.microbatch}`;
  return `stage ${bar.stage}: ${what}`;
}
