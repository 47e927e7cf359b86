// View 2: two timelines on one time axis, measured or predicted.

import {choice, h} from './dom.js';
import {bytes, plural, short, signedPercent, strategy, time} from './format.js';
import {TimelineChart} from './timeline_chart.js';
import {legend, rankLegend} from './timeline_legends.js';

/** Timelines to choose from: [key, text, parameters, is of this plan]. */
async function choices(context) {
  const options = [];
  for (const other of context.siblings) {
    const own = other === context.heading;
    const name = own ? 'this plan' : `plan of step ${other.step} (${strategy(other.strategy)})`;
    const plan = {run: other.run, tag: other.tag};
    options.push(
      [`measured ${other.tag}`, `${name}, measured`, {...plan, show: 'measured'}, own],
      [`predicted ${other.tag}`, `${name}, predicted`, {...plan, show: 'predicted'}, own]);
  }
  const {threads, totals, strategies} = await context.askOnce('plan', context.plan);
  if (!totals) return options; // no model to predict with
  for (const {name, chooses_threads: chooses} of strategies.filter((one) => !one.is_ideal)) {
    const words = `${strategy(name)}, predicted`;
    if (chooses) options.push([name, words, {...context.plan, show: name}, false]);
    else options.push(...threads.map((r) => [`${name} ${r}`, `${strategy(name)}, r = ${r}, predicted`,
      {...context.plan, show: name, threads: r}, false]));
  }
  return options;
}

export async function timelineView(place, context) {
  const options = await choices(context);
  const own = options.filter(([, , , mine]) => mine);
  const {memory} = context;
  const chart = new TimelineChart({onpick: context.select, onzoom: (range) => { memory.range = range; }});
  chart.selected = context.group;
  context.onleave(() => chart.dispose());
  const known = (key) => options.some(([one]) => one === key);
  const selected = [0, 1].map((i) => (known(memory.selected?.[i]) ? memory.selected[i] : own[i][0]));
  memory.selected = selected;
  const everyRank = h('section', {class: 'card', id: 'ranks'});
  const table = h('section', {class: 'card', id: 'spans'});
  const status = h('p', {class: 'lead', id: 'difference'});
  let loads = 0;
  const load = async () => {
    loads += 1;
    const mine = loads;
    const chosen = selected.map((key) => options.find(([one]) => one === key));
    const answers = await Promise.all(chosen.map(([, , parameters]) =>
      (parameters.show === 'measured' ? context.ask : context.askOnce)('timeline', parameters)));
    if (mine !== loads) return; // another choice was made meanwhile
    const pairs = chosen.map(([, text], i) => [text[0].toUpperCase() + text.slice(1), answers[i]]);
    const known = pairs.filter(([, timeline]) => timeline !== null);
    if (known.length > 0) chart.show(known, memory.range ?? null);
    status.replaceChildren(comparison(pairs));
    table.replaceChildren(...groupTable(pairs, context));
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
      h('span', {class: 'buttons'},
        button('+', 'Zoom in', () => chart.zoom(1.6)),
        button('−', 'Zoom out', () => chart.zoom(1 / 1.6)),
        button('←', 'Earlier', () => chart.pan(-0.2)),
        button('→', 'Later', () => chart.pan(0.2)),
        button('All', 'Show everything', () => chart.reset()))),
    chart.element,
    legend(true),
    h('p', {class: 'note'}, 'Zoom: Ctrl and wheel, or + and −. Move: drag, arrows, or Shift and wheel. Show everything: double click, or Home. Click a group to select it in every view. Times count from the start of backward. Measured bars are medians over the steps that rank 0 traced; edges in measured computation are the last gradients of groups. Under a plan with gathers, groups are reduce-scatters; gathers and the next forward pass follow the step\u2019s boundary.')), everyRank, table);
  const mark = (group) => {
    chart.select(group);
    for (const row of table.querySelectorAll('tr[data-group]')) row.setAttribute('aria-selected', String(row.dataset.group === String(group)));
  };
  context.onselect(mark);
  await Promise.all([load(), allRanks(everyRank, context)]);
  mark(context.group);
  context.ready();
}

/** One step of all ranks, with their waits. */
async function allRanks(place, context) {
  const chart = new TimelineChart({onpick: context.select});
  chart.selected = context.group;
  context.onleave(() => chart.dispose());
  context.onselect((group) => chart.select(group));
  const heading = h('h2', {}, 'All ranks in one step');
  let draws = 0;
  const draw = async () => {
    draws += 1;
    const mine = draws;
    const parameters = context.memory.step === undefined ? {} : {step: context.memory.step};
    const view = await context.ask('ranks', {...context.plan, ...parameters});
    if (mine !== draws) return;
    if (view === null) {
      place.replaceChildren(heading, h('p', {class: 'lead'}, 'No step under this plan was recorded.'));
      return;
    }
    place.replaceChildren(heading,
      h('p', {class: 'lead', id: 'skew'}, skew(view)),
      h('div', {class: 'toolbar'},
        choice('Step', view.steps.map((step) => [String(step), String(step)]), String(view.step),
          (step) => { context.memory.step = step; draw().catch(context.fail); }, {id: 'rank-step'}),
        h('span', {class: 'spacer'}),
        h('button', {type: 'button', onclick: () => chart.reset()}, 'All')),
      chart.element, rankLegend(),
      h('p', {class: 'note', hidden: view.ranks.length < 2}, 'Clocks of several hosts are aligned by messages between the ranks.'));
    chart.show(view.ranks.map(rankTimeline));
  };
  await draw();
}

function rankTimeline({rank, host, computation, spans, gathers}) {
  const at = (seconds) => ({low: seconds, median: seconds, high: seconds});
  const ends = [computation?.to ?? 0, ...[...spans, ...gathers].map((span) => span.to)];
  const last = Math.max(...ends);
  return [`rank ${rank}${host ? `, ${short(host, 30)}` : ''}`, {
    kind: 'rank', num_steps: 1, backward: at(last), compute: at(computation?.to ?? last),
    computation: computation === null ? [] : [{...computation, overlapped_groups: null, rate: null}],
    spans: spans.map((span) => ({...span, ready: at(span.ready), from: at(span.from), to: at(span.to), start: null, stop: null})),
    gathers,
  }];
}

function skew(view) {
  const groups = view.groups.filter((one) => one.group >= 0);
  if (view.ranks.length < 2 || groups.length === 0) return `Step ${view.step}, ${plural(view.ranks.length, 'rank')}.`;
  const worst = groups.reduce((a, b) => (b.skew_seconds > a.skew_seconds ? b : a));
  const unknown = view.ranks.filter((one) => one.clock_error_seconds === null).map((one) => one.rank);
  const clocks = unknown.length > 0 ? ` The clock of rank ${unknown.join(', ')} is not aligned.` : '';
  return `Step ${view.step}, ${plural(view.ranks.length, 'rank')}. Largest skew: group ${worst.group}, where rank ${worst.last_rank} was ready ${time(worst.skew_seconds)} after the first rank. Longest wait there: ${time(worst.waited_seconds)}; longest exchange: ${time(worst.exchange_seconds)}.${clocks}`;
}

function comparison([[first, a], [second, b]]) {
  const missing = [[first, a], [second, b]].filter(([, timeline]) => timeline === null).map(([name]) => name);
  if (missing.length > 0) {
    return `${missing.join(' and ')}: nothing to show. A predicted timeline needs a fitted model, a measured one a traced step.`;
  }
  const change = b.backward.median / a.backward.median - 1;
  return `${first}: backward ${time(a.backward.median)}. ${second}: ${time(b.backward.median)} (${signedPercent(change)}).`;
}

/** Spans by their tensors; several parts of the same tensors are numbered. */
function byTensors(spans) {
  const found = new Map();
  for (const span of spans) {
    let part = 0;
    while (found.has(`${span.start}-${span.stop}-${part}`)) part += 1;
    found.set(`${span.start}-${span.stop}-${part}`, span);
  }
  return found;
}

/** Table of all-reduces, with both timelines if they have the same groups. */
function groupTable(pairs, context) {
  const known = pairs.filter(([, timeline]) => timeline !== null);
  if (known.length === 0) return [];
  const spans = known.map(([, timeline]) => byTensors(timeline.spans));
  const keys = [...new Set(spans.flatMap((one) => [...one.keys()]))];
  const alike = known.length === 2 && keys.every((key) => spans.every((one) => one.has(key)));
  const columns = alike ? known : known.slice(0, 1);
  const shownSpans = alike ? spans : spans.slice(0, 1);
  const rows = [...shownSpans[0].keys()].map((key) => {
    const each = shownSpans.map((one) => one.get(key));
    const [first, last] = [each[0], each.at(-1)];
    const took = (span) => span.to.median - span.from.median;
    return h('tr', {class: 'pick', tabindex: 0, 'data-group': first.group, onclick: () => context.select(first.group),
      onkeydown: (event) => { if (event.key === 'Enter') context.select(first.group); }},
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
