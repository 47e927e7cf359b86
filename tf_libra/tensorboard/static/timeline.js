// View 2: predicted and measured timelines over one another.

import {get} from './api.js';
import {choice, h} from './dom.js';
import {bytes, short, signedPercent, STRATEGIES, strategy, time} from './format.js';
import {Lanes, legend} from './lanes.js';

const CHOOSE_THREADS = new Set(['aiacc', 'libra', 'libra-m']);

/** What can be shown: [key, text, parameters]. */
async function shown(context) {
  const options = [];
  for (const other of context.siblings) {
    const own = other === context.heading;
    const name = own ? 'this plan' : `plan of step ${other.step} (${strategy(other.strategy)})`;
    const plan = {run: other.run, tag: other.tag};
    options.push(
      [`predicted ${other.tag}`, `${name}, predicted`, {...plan, show: 'predicted'}, own],
      [`measured ${other.tag}`, `${name}, measured`, {...plan, show: 'measured'}, own]);
  }
  const {threads, totals} = await get('plan', context.plan);
  if (!totals) return options; // nothing to predict by
  for (const name of Object.keys(STRATEGIES)) {
    if (name === 'mg-cf') continue;
    const words = `${strategy(name)}, predicted`;
    if (CHOOSE_THREADS.has(name)) options.push([name, words, {...context.plan, show: name}, false]);
    else options.push(...threads.map((r) => [`${name} ${r}`, `${strategy(name)}, r = ${r}, predicted`,
      {...context.plan, show: name, threads: r}, false]));
  }
  return options;
}

export async function timelineView(place, context) {
  const options = await shown(context);
  const own = options.filter(([, , , mine]) => mine);
  const lanes = new Lanes();
  context.onleave(() => lanes.dispose());
  const selected = [own[0][0], own[1][0]];
  const table = h('section', {class: 'card', id: 'spans'});
  const status = h('p', {class: 'lead', id: 'difference'});
  const load = async () => {
    const asked = selected.map((key) => options.find(([one]) => one === key));
    const answers = await Promise.all(asked.map(([, , parameters]) => get('timeline', parameters)));
    const pairs = asked.map(([, text], i) => [text[0].toUpperCase() + text.slice(1), answers[i]]);
    const known = pairs.filter(([, timeline]) => timeline !== null);
    if (known.length > 0) lanes.show(known);
    status.replaceChildren(comparison(pairs));
    table.replaceChildren(...groupTable(pairs));
    place.dataset.shown = selected.join(' | ');
  };
  const select = (i, label) => choice(label, options.map(([key, text]) => [key, short(text, 60)]), selected[i],
    (value) => { selected[i] = value; load().catch(context.fail); }, {id: `timeline-${i}`});
  const button = (text, label, onclick) => h('button', {type: 'button', 'aria-label': label, title: label, onclick}, text);
  place.replaceChildren(h('section', {class: 'card'},
    h('h2', {}, 'Backward computation and communication on one time axis'),
    status,
    h('div', {class: 'toolbar'},
      select(0, 'Above'), select(1, 'Below'),
      h('span', {class: 'spacer'}),
      button('+', 'Zoom in', () => lanes.zoom(1.6)),
      button('−', 'Zoom out', () => lanes.zoom(1 / 1.6)),
      button('←', 'Earlier', () => lanes.pan(-0.2)),
      button('→', 'Later', () => lanes.pan(0.2)),
      button('All', 'Show everything', () => lanes.reset())),
    lanes.element,
    legend(true),
    h('p', {class: 'note'}, 'Wheel: zoom. Drag, or wheel with Shift: move. Double click: everything. Times count from the start of backward. Measured bars are medians over the steps that rank 0 has traced; a measured computation shows where the groups’ last gradients came.')), table);
  await load();
  context.ready();
}

function comparison([[first, a], [second, b]]) {
  const missing = [[first, a], [second, b]].filter(([, timeline]) => timeline === null).map(([name]) => name);
  if (missing.length > 0) {
    return `${missing.join(' and ')}: nothing to show. What is predicted needs a fitted model, what is measured a traced step.`;
  }
  const change = b.backward.median / a.backward.median - 1;
  return `${first}: backward ${time(a.backward.median)}. ${second}: ${time(b.backward.median)} (${signedPercent(change)}).`;
}

/** By the tensors of each, and, of several that have parts of the same, by which part. */
function byTensors(spans) {
  const found = new Map();
  for (const span of spans) {
    let part = 0;
    while (found.has(`${span.start}-${span.stop}-${part}`)) part += 1;
    found.set(`${span.start}-${span.stop}-${part}`, span);
  }
  return found;
}

/** Groups of both timelines beside one another, where they have the same groups. */
function groupTable(pairs) {
  const known = pairs.filter(([, timeline]) => timeline !== null);
  if (known.length === 0) return [];
  const spans = known.map(([, timeline]) => byTensors(timeline.spans));
  const keys = [...new Set(spans.flatMap((one) => [...one.keys()]))];
  const alike = known.length === 2 && keys.every((key) => spans.every((one) => one.has(key)));
  const columns = alike ? known : known.slice(-1);
  const shownSpans = alike ? spans : spans.slice(-1);
  const rows = [...shownSpans[0].keys()].map((key) => {
    const each = shownSpans.map((one) => one.get(key));
    const [first, last] = [each[0], each.at(-1)];
    const took = (span) => span.to.median - span.from.median;
    return h('tr', {'data-group': first.group},
      h('td', {class: 'left'}, `${first.group}`),
      h('td', {}, bytes(first.num_bytes)),
      h('td', {}, `r = ${first.num_threads}`),
      each.map((span) => [h('td', {}, time(span.from.median)), h('td', {}, time(span.to.median)), h('td', {}, time(took(span)))]),
      alike ? h('td', {}, signedPercent(took(last) / took(first) - 1)) : null);
  });
  return [
    h('h2', {}, 'All-reduces'),
    h('div', {class: 'scroll'}, h('table', {},
      h('thead', {}, h('tr', {}, h('th', {class: 'left'}, 'Group'), h('th', {}, 'Size'), h('th', {}, 'Threads'),
        columns.map((_, i) => ['starts', 'ends', 'takes'].map((word) => h('th', {}, alike ? `${i === 0 ? 'Above' : 'Below'}: ${word}` : word))),
        alike ? h('th', {}, 'Difference') : null)),
      h('tbody', {}, rows))),
  ];
}
