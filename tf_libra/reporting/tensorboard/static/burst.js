// Cards of a burst plan and of background jobs.

import {h, s} from './dom.js';
import {percent, plural, short, signedPercent, strategy, time} from './format.js';
import {gantt, ganttLegend} from './gantt.js';

const WIDTH = 1000;
const LABEL = 64;
const STEP = 26; // height of the curve per number of ranks
const NAMES = 22; // height of the layer numbers below the curve
const LEAST_NUMBER = 28; // least width for a layer's number

/** Card of one burst plan, from the answer of `runs`. */
export function burstCard(burst) {
  const {charts, layers} = burst;
  const longest = Math.max(...charts.map((chart) => chart.seconds));
  const ranks = charts.reduce((most, chart) => Math.max(most, chart.idle_seconds.length), 0);
  const rows = Array.from({length: ranks}, (_, rank) => rank);
  return h('section', {class: 'card staged burst', 'data-function': burst.function},
    h('h2', {class: 'name'}, `${short(burst.function, 60)}: a burst plan under ${strategy(burst.strategy)}, ${limit(burst)}`),
    h('p', {class: 'lead'}, `Measured iteration: ${time(burst.measured_seconds)}; predicted: ${time(burst.predicted_seconds)}, ${time(burst.device_seconds)} of all ranks together.`),
    h('h3', {}, 'Ranks under each layer'),
    curve(burst),
    charts.map((chart) => gantt(chart, rows, longest, (bar) => `${WORDS[bar.kind]} ${short(bar.layers, 60)}`, idle(chart))),
    ganttLegend([['compute', 'computation, forward and backward'], ['transition', 'transition'], ['step', 'whole step'], ['forward', 'forward'], ['backward', 'backward'], ['all_reduce', 'all-reduce'], ['update', 'update']]),
    h('p', {class: 'note'}, 'The plan shows forward and backward of a layer together; execution runs the whole forward before the backward.'),
    h('div', {class: 'scroll'}, h('table', {class: 'layers'},
      h('thead', {}, h('tr', {}, [['left', 'layer'], ['', 'ranks'], ['', 'transition'], ['', 'computation'], ['', 'all-reduce'], ['', 'amplification'],
        ...(layers[0].measured === null ? [] : burst.device_counts.map((count) => ['', `on ${count}`]))].map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, layers.map((layer) => h('tr', {},
        h('td', {class: 'left', title: layer.name}, short(layer.name, 50)),
        h('td', {}, layer.first_device === 0 ? String(layer.num_devices) : `${layer.num_devices}, from rank ${layer.first_device} on`),
        h('td', {}, time(layer.comes_in)),
        h('td', {}, time(layer.computes)),
        h('td', {}, time(layer.all_reduce)),
        h('td', {}, layer.amplification === null ? '-' : layer.amplification.toFixed(2)),
        (layer.measured ?? []).map((seconds) => h('td', {}, time(seconds)))))))),
    h('p', {class: 'note'}, `Times are of the whole batch, forward and backward.${layers[0].measured === null ? '' : ' The last columns are measured computation on each number of ranks.'}`),
    burst.notes.map((note) => h('p', {class: 'note name'}, note)));
}

const WORDS = {compute: 'computation of', transition: 'transition into', step: 'step of', forward: 'forward of', backward: 'backward of', all_reduce: 'all-reduce of', update: 'update of'};

function limit({max_amplification: most}) {
  return most === null ? 'without a limit on amplification' : `amplification at most ${most}`;
}

function idle({title, seconds, idle_seconds: each}) {
  return h('ul', {class: 'bubbles'}, each.map((one, rank) => h('li', {},
    `Rank ${rank} is idle for ${time(one)}, ${percent(seconds > 0 ? one / seconds : 0)} of the ${title} iteration.`)));
}

/** Step curve of the number of ranks over the layers. */
function curve({layers, device_counts: counts}) {
  const base = counts.length * STEP;
  const width = (WIDTH - LABEL) / layers.length;
  const x = (layer) => LABEL + layer * width;
  const y = (count) => base - (counts.indexOf(count) + 0.5) * STEP;
  const line = layers.map(({num_devices: count}, layer) => `${layer === 0 ? 'M' : 'L'}${x(layer)} ${y(count)}H${x(layer + 1)}`).join('');
  const every = Math.ceil(LEAST_NUMBER / width);
  return s('svg', {class: 'curve', viewBox: `0 0 ${WIDTH} ${base + NAMES}`, role: 'img', 'aria-label': 'Ranks under each layer'},
    counts.map((count) => [
      s('line', {class: 'gridline', x1: LABEL, x2: WIDTH, y1: y(count), y2: y(count)}),
      s('text', {x: 0, y: y(count) + 4}, plural(count, 'rank')),
    ]),
    s('path', {class: 'area', d: `${line}V${base}H${LABEL}Z`}),
    s('path', {class: 'steps', d: line}),
    layers.map((layer, number) => [
      number % every === 0 ? s('text', {x: x(number + 0.5), y: base + 15, 'text-anchor': 'middle'}, String(number)) : null,
      s('rect', {class: 'hit', x: x(number), y: 0, width, height: base},
        s('title', {}, `layer ${number}, ${short(layer.name, 60)}: ${plural(layer.num_devices, 'rank')}`)),
    ]).flat());
}

/** Cards of background jobs, one for each training function of a job. */
export function backgroundCards(backgrounds) {
  const found = new Map();
  for (const one of backgrounds) {
    const key = JSON.stringify([one.job, one.function]);
    found.set(key, [...(found.get(key) ?? []), one]);
  }
  return [...found.values()].map((ranks) => backgroundCard(ranks.sort((a, b) => a.rank - b.rank)));
}

function backgroundCard(ranks) {
  const counted = ranks.filter((one) => one.steps_per_second !== null);
  const total = counted.reduce((sum, one) => sum + one.steps_per_second, 0);
  const known = ranks.filter((one) => one.slowdown !== null).map((one) => one.slowdown);
  const lead = [
    counted.length > 0 ? `Background jobs of all ranks: ${rounded(total)} steps per second.` : null,
    known.length > 0 ? `Largest slowdown of a training step: ${signedPercent(Math.max(...known))}.` : null,
  ].filter(Boolean).join(' ');
  return h('section', {class: 'card background', 'data-function': ranks[0].function},
    h('h2', {class: 'name'}, `${short(ranks[0].function, 60)}: background jobs`),
    lead === '' ? null : h('p', {class: 'lead'}, lead),
    h('div', {class: 'scroll'}, h('table', {},
      h('thead', {}, h('tr', {}, [['left', 'rank'], ['', 'steps per second'], ['', 'active during'], ['', 'pauses'], ['', 'slowdown of a step'], ['', 'limit of the mean slowdown'], ['left', 'command']].map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, ranks.map((one) => h('tr', {'data-rank': one.rank},
        h('td', {class: 'left'}, String(one.rank)),
        h('td', {}, one.steps_per_second === null ? 'not counted' : rounded(one.steps_per_second)),
        h('td', {}, `${percent(one.share_of_steps)} of ${plural(one.step, 'step')}`),
        h('td', {}, String(one.num_pauses)),
        h('td', {}, one.slowdown === null ? 'unknown' : signedPercent(one.slowdown)),
        h('td', {}, percent(one.max_slowdown)),
        // Only the program's name: its folder would take the space of its arguments.
        h('td', {class: 'left', title: one.command}, short(one.command.replace(/^\S*\//, ''), 50))))))));
}

function rounded(number) {
  return String(Number(number.toPrecision(4)));
}
