// View 5: step times, and errors of the predictions.

import {chart, plain} from './charts.js';
import {h} from './dom.js';
import {origin, percent, plural, signedPercent, strategy, time} from './format.js';
import {color} from './theme.js';

export async function historyView(place, context) {
  const view = await context.ask('history', context.plan);
  const steps = h('div', {class: 'plot', id: 'history-steps'});
  const parts = h('div', {class: 'plot', id: 'history-backward'});
  const errors = h('div', {class: 'plot low', id: 'history-errors'});
  const checked = view.series.backward_seconds.length;
  place.replaceChildren(
    h('section', {class: 'card'},
      h('h2', {}, 'Step time'),
      h('p', {class: 'lead', id: 'history-lead'}, lead(view)),
      view.drifts.map((drift) => h('p', {class: 'lead drift'}, describeDrift(drift))),
      steps),
    h('div', {class: 'grid two'},
      h('section', {class: 'card'}, h('h2', {}, 'Backward and residual communication'),
        h('p', {class: 'lead'}, `From ${plural(checked, 'step')} under a plan that rank 0 traced. Tracing slows a step, so only few are traced.`), parts),
      h('section', {class: 'card'}, h('h2', {}, 'Prediction error'),
        h('p', {class: 'lead'}, view.errors.length === 0 ? 'No predictions.' : 'Predicted / measured backward - 1. A changing error means that machines or network have changed.'), errors)),
    h('section', {class: 'card'}, h('h2', {}, 'Activated plans'), table(view, context)));
  const draw = () => Promise.all([stepChart(steps, view), backwardChart(parts, view), errorChart(errors, view)]);
  context.onrestyle(draw);
  await draw();
  context.ready();
}

/** Describes a drift and its consequence. */
function describeDrift(drift) {
  const times = [time(drift.measured_seconds), time(drift.expected_seconds)];
  return drift.is_back
    ? `Step ${drift.step}: steps took ${times[0]} again, near the expected ${times[1]}; the plan stayed active.`
    : `Step ${drift.step}: steps took ${times[0]} instead of the expected ${times[1]}; retuning began.`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function lead(view) {
  const last = view.plans.at(-1);
  const points = view.series.step_seconds;
  const under = points.filter(([step]) => last && step > last.step).map(([, seconds]) => seconds);
  const words = [`${plural(points.length + view.series.disturbed_step_seconds.length, 'point')} recorded.`];
  if (under.length > 0) {
    words.push(`Median step under the plan of step ${last.step}: ${time(median(under))}.`);
  }
  if (view.errors.length > 0) {
    const miss = median(view.errors.map(([, error]) => Math.abs(error)));
    words.push(`Median error of predicted backward: ${percent(miss)} over ${plural(view.errors.length, 'traced step')}.`);
  }
  return words.join(' ');
}

/** Lines at the activations of plans, with strategy names. */
function marks(view) {
  return {
    shapes: view.plans.map((plan) => ({
      type: 'line', x0: plan.step, x1: plan.step, y0: 0, y1: 1, yref: 'paper',
      line: {color: color('muted'), width: 1.5, dash: 'dash'}})),
    annotations: view.plans.map((plan) => ({
      x: plan.step, y: 1, yref: 'paper', xanchor: 'left', yanchor: 'top', showarrow: false, xshift: 4,
      text: plain(`plan: ${strategy(plan.strategy)}`), font: {size: 11, color: color('muted')}})),
  };
}

function points(view, key, name, tint, marker = {}, mode = 'markers') {
  const series = view.series[key];
  return {name, type: 'scatter', mode, x: series.map(([step]) => step), y: series.map(([, seconds]) => 1e3 * seconds),
    line: {color: tint, width: 1.5}, marker: {color: tint, size: 5, ...marker},
    hovertemplate: series.map(([, seconds]) => `step %{x}<br>${time(seconds)}<extra>${name}</extra>`)};
}

function stepChart(element, view) {
  const steady = view.series.step_seconds.map(([, seconds]) => 1e3 * seconds);
  const top = steady.length > 0 ? 2.5 * median(steady) : undefined;
  const highest = Math.max(...steady, 0);
  return chart(element, [
    points(view, 'step_seconds', 'step', color('compute')),
    points(view, 'disturbed_step_seconds', 'first step of a plan, or traced', color('muted'), {symbol: 'x-thin-open', size: 6}),
  ], {x: {title: 'step'}, y: {title: 'ms', range: top === undefined ? undefined : [0, Math.min(top, 1.15 * highest)]},
    ...marks(view)});
}

function backwardChart(element, view) {
  const traces = [
    points(view, 'backward_seconds', 'backward, measured', color('compute'), {size: 8}, 'lines+markers'),
    points(view, 'residual_communication_seconds', 'residual communication, measured', color('residual'), {size: 8}, 'lines+markers'),
  ];
  const steps = view.series.backward_seconds.map(([step]) => step);
  for (const [index, plan] of view.plans.entries()) {
    if (plan.predicted_seconds === null || steps.length === 0) continue;
    const until = view.plans[index + 1]?.step ?? Math.max(...steps, plan.step);
    traces.push({name: 'backward, predicted', showlegend: index === 0, type: 'scatter', mode: 'lines', x: [plan.step, until],
      y: [1e3 * plan.predicted_seconds, 1e3 * plan.predicted_seconds], line: {color: color('text'), width: 2, dash: 'dash'},
      hovertemplate: `${time(plan.predicted_seconds)}<extra>predicted</extra>`});
  }
  return chart(element, traces, {x: {title: 'step', tickformat: 'd'}, y: {title: 'ms', rangemode: 'tozero'}});
}

function errorChart(element, view) {
  return chart(element, [{
    name: 'error', type: 'scatter', mode: 'lines+markers', showlegend: false,
    x: view.errors.map(([step]) => step), y: view.errors.map(([, error]) => 100 * error),
    line: {color: color('text'), width: 1.5}, marker: {size: 8, color: color('text')},
    hovertemplate: view.errors.map(([step, error]) => `step ${step}: ${signedPercent(error)}<extra></extra>`)}],
  {x: {title: 'step', tickformat: 'd'}, y: {tickformat: '~g', ticksuffix: ' %', zeroline: true, zerolinewidth: 2, rangemode: 'tozero'}});
}

function table(view, context) {
  return h('table', {id: 'plans'},
    h('thead', {}, h('tr', {}, [['left', 'From step'], ['left', 'Strategy'], ['left', 'Origin'], ['', 'Groups'], ['', 'Backward, predicted'], ['left', 'Fingerprint']]
      .map(([kind, text]) => h('th', {class: kind}, text)))),
    h('tbody', {}, view.plans.map((plan) => h('tr', {},
      h('td', {class: 'left'}, String(plan.step)),
      h('td', {class: 'left'}, strategy(plan.strategy),
        plan.fingerprint === context.heading.fingerprint ? h('span', {class: 'badge'}, 'selected') : null),
      h('td', {class: 'left'}, origin(plan.origin)),
      h('td', {}, String(plan.num_groups)),
      h('td', {}, time(plan.predicted_seconds)),
      h('td', {class: 'left'}, h('code', {}, plan.fingerprint.slice(0, 12)))))));
}
