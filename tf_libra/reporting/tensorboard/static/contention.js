// View 3: samples of the contention model, and the fitted curves.

import {chart, threadColor} from './charts.js';
import {h} from './dom.js';
import {bytes, percent, plural, rate, tickStep, time} from './format.js';
import {color} from './theme.js';

const RATES = [['kB/s', 1e-3], ['MB/s', 1e-6], ['GB/s', 1e-9]];

export async function contentionView(place, context) {
  const view = await context.askOnce('contention', context.plan);
  if (view.model === null) {
    place.replaceChildren(h('section', {class: 'card'}, h('h2', {}, 'No contention model'),
      h('p', {class: 'lead'}, 'The user has provided the plan, or the samples were too few to fit a model.'),
      view.notes.map((note) => h('p', {class: 'note name'}, note))));
    context.ready();
    return;
  }
  const plots = [0, 1, 2, 3].map((i) => h('div', {class: 'plot', id: `contention-${i}`}));
  place.replaceChildren(
    h('section', {class: 'card'},
      h('h2', {}, 'Contention of communication threads'),
      h('p', {class: 'lead', id: 'fit'}, summary(view)),
      view.samples.length === 0
        ? h('p', {class: 'note'}, 'The model was cached by an earlier job, whose run has the samples.') : null,
      coefficients(view)),
    h('div', {class: 'grid two'},
      panel('Computation slowdown', 'Backward computation and updates during an all-reduce, relative to computation without one: g(b, r) / b.', plots[0]),
      panel('Transmission rate', 'Bytes per second and worker of a ring all-reduce, without startup overhead. Dots are samples whose transmission takes longer than the startup, by the model.', plots[1]),
      panel('Predicted against measured', 'One dot per sampled all-reduce; on the line, the prediction is exact.', plots[2]),
      panel('Residuals', 'Predicted over measured time by size of the all-reduce; at 1, the prediction is exact.', plots[3])),
    view.notes.length === 0 ? '' : h('section', {class: 'card'}, h('h2', {}, 'Notes of the fit'),
      view.notes.map((note) => h('p', {class: 'note name'}, note))));
  const draw = () => Promise.all([
    slowdown(plots[0], view), rates(plots[1], view), agreement(plots[2], view), residuals(plots[3], view),
  ]);
  context.onrestyle(draw);
  await draw();
  context.ready();
}

function panel(title, lead, plot) {
  return h('section', {class: 'card'}, h('h2', {}, title), h('p', {class: 'lead'}, lead), plot);
}

function summary(view) {
  const first = view.at_threads[0];
  const last = view.at_threads.at(-1);
  const words = [];
  if (first && last && first !== last) {
    words.push(`From r = ${first.num_threads} to r = ${last.num_threads}, the rate of an overlapped all-reduce changes by a factor of ${(last.overlapped_rate / first.overlapped_rate).toFixed(2)}, and the time of concurrent computation by ${(last.slowdown / first.slowdown).toFixed(2)}.`);
  }
  if (view.median_error !== null) {
    words.push(`Median error of overlapped or of exclusive all-reduces, whichever is larger: ${percent(view.median_error)} over ${plural(view.samples.length, 'sample')}${view.weighted_error === null ? '' : `, ${percent(view.weighted_error)} weighted by time`}.`);
  }
  words.push(view.held_out_error === null
    ? 'No held-out steps.'
    : `Median error of held-out steps: ${percent(view.held_out_error)}.`);
  return words.join(' ');
}

function coefficients(view) {
  return h('div', {},
    h('table', {id: 'coefficients'},
      h('thead', {}, h('tr', {}, [['left', 'Threads'], ['', 'Computation'], ['', 'All-reduce, overlapped'], ['', 'All-reduce, exclusive']]
        .map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, view.at_threads.map((one) => h('tr', {},
        h('td', {class: 'left'}, `r = ${one.num_threads}`),
        h('td', {}, timesAsLong(one.slowdown)),
        h('td', {}, rate(one.overlapped_rate)),
        h('td', {}, rate(one.exclusive_rate)))))),
    h('p', {class: 'note'}, `${view.model.formula}.`));
}

/** Source of a sample: steady-state steps of a plan, or a traced step if those are too few. */
function origin(one) {
  return one.step > 0 ? `step ${one.step}` : `group ${one.group}, steady-state steps`;
}

// Spreads the dots of one r sideways, so that they do not hide each other.
function spread(index) {
  return (((index * 0.618034) % 1) - 0.5) * 0.3;
}

function ticks(view) {
  return {tickvals: view.threads, title: 'communication threads r', range: [0.5, Math.max(...view.threads) + 0.5]};
}

const dots = (name, tint) => ({
  name, type: 'scatter', mode: 'markers', marker: {color: tint, size: 7, opacity: 0.6},
});

const timesAsLong = (ratio) => `${ratio.toFixed(3)} times as long`;

function curve(name, view, key, tint, describe, factor = 1) {
  return {name, type: 'scatter', mode: 'lines', x: view.curves.num_threads, y: view.curves[key].map((value) => factor * value),
    line: {color: tint, width: 2.5},
    hovertemplate: view.curves[key].map((value) => `r = %{x:.2f}<br>${describe(value)}<extra>${name}</extra>`)};
}

function slowdown(element, view) {
  const some = view.samples.filter((one) => one.slowdown !== null);
  return chart(element, [
    {...dots('samples', color('compute')),
      x: some.map((one, i) => one.num_threads + spread(i)), y: some.map((one) => one.slowdown),
      text: some.map((one) => `r = ${one.num_threads}, ${origin(one)}<br>${bytes(one.num_bytes)}`),
      hovertemplate: some.map((one) => `%{text}<br>${timesAsLong(one.slowdown)}<extra></extra>`)},
    curve('fitted', view, 'slowdown', color('compute-slow'), timesAsLong),
    medians('medians', some, 'slowdown', color('compute'), timesAsLong),
    // A hiccup during a short all-reduce looks like an arbitrary slowdown, so the range is limited.
  ], {x: ticks(view), y: {title: 'times as long', range: [0.9, 1 + 1.8 * (Math.max(...view.curves.slowdown) - 0.9)]}});
}

/** Medians of the samples of each thread count. */
function medians(name, some, key, tint, describe, factor = 1) {
  const counts = [...new Set(some.map((one) => one.num_threads))].sort((a, b) => a - b);
  const middle = counts.map((r) => {
    const values = some.filter((one) => one.num_threads === r).map((one) => one[key]).sort((a, b) => a - b);
    const half = Math.floor(values.length / 2);
    return values.length % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  });
  return {name, type: 'scatter', mode: 'markers', x: counts, y: middle.map((value) => factor * value),
    marker: {color: tint, size: 11, symbol: 'diamond', line: {width: 1.5, color: color('surface')}},
    hovertemplate: middle.map((value) => `r = %{x}, median ${describe(value)}<extra>${name}</extra>`)};
}

function rates(element, view) {
  const most = Math.max(0, ...view.curves.overlapped_rate, ...view.curves.exclusive_rate);
  const [unit, factor] = RATES.find(([, one]) => most * one < 1000) ?? RATES.at(-1);
  const traces = [];
  for (const [name, tint, key, chosen] of [
    ['overlapped', color('overlap'), 'overlapped_rate', (one) => one.residual_seconds === 0],
    ['exclusive', color('residual'), 'exclusive_rate', (one) => one.overlap_seconds === 0],
  ]) {
    const some = view.samples.filter((one) => chosen(one) && one.rate !== null);
    traces.push({...dots(`${name}, samples`, tint),
      x: some.map((one, i) => one.num_threads + spread(i)), y: some.map((one) => factor * one.rate),
      text: some.map((one) => `r = ${one.num_threads}, ${origin(one)}<br>${bytes(one.num_bytes)} in ${time(one.overlap_seconds + one.residual_seconds)}`),
      hovertemplate: some.map((one) => `%{text}<br>${rate(one.rate)}<extra></extra>`)});
    traces.push(
      curve(`${name}, fitted`, view, key, tint, rate, factor),
      {...medians(`${name}, medians`, some, 'rate', tint, rate, factor), showlegend: false});
  }
  return chart(element, traces, {x: ticks(view),
    // Small all-reduces are mostly startup and show arbitrary rates, so the range is limited.
    y: {title: unit, range: [0, 2.2 * factor * most]}});
}

/** Logarithmic axis with enough ticks, over decades as well as over a few per cent. */
function logAxis(values, text) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (values.length === 0 || !(least > 0)) return {type: 'log'};
  let ticks = [];
  if (most / least > 5) {
    for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) ticks.push(power, 2 * power, 5 * power);
    if (most / least > 500) ticks = ticks.filter((_, i) => i % 3 === 0);
  } else {
    const step = tickStep(most - least, 5);
    for (let i = Math.ceil(least / step); i * step <= most; i += 1) ticks.push(i * step);
  }
  return {type: 'log', tickvals: ticks, ticktext: ticks.map((one) => text(Number(one.toPrecision(3))))};
}

function byThreads(view, x, y, text) {
  return view.threads.map((r) => {
    const some = view.samples.filter((one) => one.num_threads === r);
    return {...dots(`r = ${r}`, threadColor(r, view.threads)), x: some.map(x), y: some.map(y),
      text: some.map(text), hovertemplate: '%{text}<extra></extra>'};
  });
}

const wall = (one) => one.overlap_seconds + one.residual_seconds;
const describe = (one) => `r = ${one.num_threads}, ${bytes(one.num_bytes)}, ${origin(one)}<br>measured ${time(wall(one))}, predicted ${time(one.predicted_seconds)}`;

function agreement(element, view) {
  const all = view.samples.flatMap((one) => [1e3 * wall(one), 1e3 * one.predicted_seconds]);
  const ends = all.length > 0 ? [0.8 * Math.min(...all), 1.25 * Math.max(...all)] : [1, 10];
  const axis = logAxis(ends, String);
  return chart(element, [
    {name: 'exact', type: 'scatter', mode: 'lines', x: ends, y: ends, hoverinfo: 'skip',
      line: {color: color('muted'), width: 1, dash: 'dot'}},
    ...byThreads(view, (one) => 1e3 * wall(one), (one) => 1e3 * one.predicted_seconds, describe),
  ], {x: {title: 'measured, ms', ...axis}, y: {title: 'predicted, ms', ...axis}});
}

function residuals(element, view) {
  return chart(element,
    byThreads(view, (one) => one.num_bytes, (one) => 1 + one.error, describe),
    {x: {title: 'size of the all-reduce', ...logAxis(view.samples.map((one) => one.num_bytes), bytes)},
      y: {title: 'predicted / measured', ...logAxis(view.samples.map((one) => 1 + one.error), String)},
      shapes: [{type: 'line', xref: 'paper', x0: 0, x1: 1, y0: 1, y1: 1, line: {color: color('muted'), width: 1, dash: 'dot'}}]});
}
