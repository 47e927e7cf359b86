// View 4: predictions of every strategy on this profile, also for more workers.

import {chart, plain} from './charts.js';
import {h} from './dom.js';
import {plural, short, signedPercent, strategy, time, trialLimits, trialStep, verdict} from './format.js';
import {color, strategyColors} from './theme.js';

const PART_MILLISECONDS = 500; // between drawings of partial results
const LABEL_SHARE = 0.03; // distance of two labels, as a share of the axis

/** Labels of the dots on one line; dots that are too close share a label in their middle. */
function labels(rows, least, most) {
  const texts = rows.map(() => '');
  const sorted = rows.map((row, i) => [row.backward_seconds, i]).sort(([a], [b]) => a - b);
  for (let from = 0, to = 0; from < sorted.length; from = to) {
    to = from + 1;
    while (to < sorted.length && sorted[to][0] - sorted[to - 1][0] <= LABEL_SHARE * (most - least)) to += 1;
    const some = sorted.slice(from, to).map(([, i]) => i);
    texts[some[Math.floor((some.length - 1) / 2)]] = some.map((i) => rows[i].num_threads).filter((r) => r !== null).map((r) => `r${r}`).join(' ');
  }
  return texts;
}

/** Readable ticks of an axis of ratios from `least` to `most`. */
function ratioTicks(least, most) {
  if (most / least > 4) return powers(2, least, most);
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((one) => (most - least) / one <= 8) ?? 1;
  const first = Math.ceil(least / step);
  return Array.from({length: Math.floor(most / step) - first + 1}, (_, i) => (first + i) * step);
}

function powers(base, least, most) {
  const first = Math.ceil(Math.log(least) / Math.log(base));
  const last = Math.floor(Math.log(most) / Math.log(base));
  const every = Math.ceil((last - first + 1) / 10);
  return Array.from({length: last - first + 1}, (_, i) => base ** (first + i)).filter((_, i) => (first + i) % every === 0);
}

/** The fastest row of each strategy. */
function best(rows) {
  const found = new Map();
  for (const row of rows) {
    if (row.backward_seconds === null) continue;
    const known = found.get(row.strategy);
    if (!known || row.backward_seconds < known.backward_seconds) found.set(row.strategy, row);
  }
  return [...found.values()];
}

export async function strategiesView(place, context) {
  const {strategies, num_workers: own, scale_out: sizes} = await context.askOnce('plan', context.plan);
  const names = strategies.map((one) => one.name);
  if (names.length === 0) {
    place.replaceChildren(h('section', {class: 'card'}, h('h2', {}, 'Nothing to compare'),
      h('p', {class: 'lead'}, 'A comparison needs a profile and a fitted model, which this run does not have.')));
    context.ready();
    return;
  }
  const view = {...await context.ask('steps', context.plan), num_workers: own, names, rows: []};
  const words = h('p', {class: 'lead'});
  const compare = h('div', {class: 'plot', id: 'strategies-plot'});
  const rows = h('div', {});
  const planning = h('p', {class: 'note', id: 'strategies-progress', 'data-pending': true});
  const scaling = h('div', {class: 'plot tall', id: 'scale-plot'});
  const progress = h('p', {class: 'note', id: 'scale-progress', 'data-pending': true});
  place.replaceChildren(
    h('section', {class: 'card'},
      h('h2', {}, `Every strategy on this profile, ${plural(own, 'worker')}`),
      words, compare, rows, planning),
    h('section', {class: 'card'},
      h('h2', {}, 'Scale-out'),
      h('p', {class: 'lead'}, 'Predicted backward on more workers of the same hardware, relative to LIBRA. Each strategy has its best thread count. Only startup overhead and transmitted bytes change (LIBRA, Eq. 4).'),
      scaling, progress));
  const studies = [];
  const drawRows = () => {
    words.textContent = lead(view, context);
    rows.replaceChildren(table(view, context));
    return rowsChart(compare, view, context);
  };
  const drawScale = () => (studies.length === 0 ? null : scaleChart(scaling, studies, strategies));
  context.onrestyle(() => Promise.all([drawRows(), drawScale()]));
  // Planning takes seconds for thousands of tensors, so partial results are drawn.
  planning.textContent = `planning with ${strategy(names[0])} …`;
  setTimeout(() => context.ready(), PART_MILLISECONDS); // even if the first strategy takes longer
  let drawn = performance.now();
  for (const [index, name] of names.entries()) {
    view.rows.push(...(await context.askOnce('strategies', {...context.plan, strategy: name})).rows);
    if (context.left()) return;
    if (performance.now() - drawn < PART_MILLISECONDS || index === names.length - 1) continue;
    planning.textContent = `planning with ${strategy(names[index + 1])} …`;
    await drawRows();
    context.ready();
    drawn = performance.now();
  }
  planning.remove();
  await drawRows();
  if (sizes.length === 0) scaling.parentElement.remove();
  drawn = performance.now();
  for (const workers of sizes) {
    if (context.left()) return;
    if (performance.now() - drawn > PART_MILLISECONDS) {
      progress.textContent = `planning for ${workers} of up to ${sizes.at(-1)} workers …`;
      await drawScale();
      context.ready();
      drawn = performance.now();
    }
    studies.push(await context.askOnce('strategies', {...context.plan, workers}));
  }
  await drawScale();
  progress.remove();
  context.ready();
}

function lead(view, context) {
  const rows = best(view.rows);
  const libra = rows.find((row) => row.strategy === 'libra');
  const others = rows.filter((row) => !row.strategy.startsWith('libra') && !row.is_ideal);
  if (!libra || others.length === 0) return '';
  const second = others.reduce((a, b) => (b.backward_seconds < a.backward_seconds ? b : a));
  const gain = signedPercent(libra.backward_seconds / second.backward_seconds - 1);
  const words = `Predicted backward under LIBRA is ${time(libra.backward_seconds)}, ${gain} against the best other strategy, ${strategy(second.strategy)}${second.num_threads === null ? '' : ` with r = ${second.num_threads}`}.`;
  if (view.rest_seconds === null) return words;
  return `${words} The rest of a step takes ${time(view.rest_seconds)} under every strategy (a measured step of this run minus predicted backward).`;
}

function rowsChart(element, view, context) {
  const known = view.rows.filter((row) => row.backward_seconds !== null);
  const colors = strategyColors(view.names);
  const names = view.names.filter((name) => known.some((row) => row.strategy === name)).reverse();
  const shown = known.map((row) => 1e3 * row.backward_seconds);
  const [least, most] = [Math.min(...shown), Math.max(...shown)];
  const traces = names.map((name) => {
    const rows = known.filter((row) => row.strategy === name);
    return {
      name: strategy(name), type: 'scatter', mode: 'markers+text', showlegend: false,
      x: rows.map((row) => 1e3 * row.backward_seconds), y: rows.map(() => strategy(name)),
      text: labels(rows, 1e-3 * least, 1e-3 * most),
      textposition: 'top center', textfont: {size: 10, color: color('muted')},
      marker: {color: colors.get(name), size: name === context.heading.strategy ? 15 : 11,
        symbol: rows[0].is_ideal ? 'diamond-open' : 'circle',
        line: {width: name === context.heading.strategy ? 2 : 0, color: color('text')}},
      hovertemplate: rows.map((row) => `${strategy(name)}${row.num_threads === null ? '' : `, r = ${row.num_threads}`}<br>${time(row.backward_seconds)}, ${plural(row.groups, 'group')}, r in {${row.threads.join(', ')}}<extra></extra>`),
    };
  });
  const margin = 0.06 * (most - least) || 0.05 * most || 1;
  return chart(element, traces, {
    // The axis need not begin at 0, as dots show positions rather than lengths.
    x: {title: 'predicted backward, ms', range: [least - margin, most + margin]}, y: {title: ''}, margin: {l: 150, r: 24, t: 20, b: 44}});
}

function table(view, context) {
  const own = context.heading;
  const quickest = Math.min(...view.rows.filter((row) => !row.is_ideal && row.backward_seconds !== null).map((row) => row.backward_seconds));
  const rows = best(view.rows).sort((a, b) => a.backward_seconds - b.backward_seconds);
  const step = (row) => (view.rest_seconds === null ? null : row.backward_seconds + view.rest_seconds);
  return h('div', {class: 'scroll'}, h('table', {id: 'strategies'},
    h('thead', {}, h('tr', {}, [['left', 'Strategy at its best r'], ['left', 'Step, measured'], ['', 'Threads'], ['', 'Groups'], ['', 'Step, predicted'], ['', 'Backward, predicted'], ['', 'against the best']]
      .map(([kind, text]) => h('th', {class: kind}, text)))),
    h('tbody', {}, rows.map((row) => h('tr', {'data-strategy': row.strategy},
      h('td', {class: 'left'}, strategy(row.strategy),
        row.fingerprint === own.fingerprint && row.strategy === own.strategy ? h('span', {class: 'badge'}, 'this plan') : null,
        row.is_ideal ? h('span', {class: 'badge'}, 'ideal') : null),
      h('td', {class: 'left wraps'}, measuredSteps(row.strategy, view)),
      h('td', {}, row.threads.join(', ')),
      h('td', {}, String(row.groups)),
      h('td', {}, time(step(row))),
      h('td', {'data-seconds': row.backward_seconds}, time(row.backward_seconds)),
      h('td', {}, signedPercent(row.backward_seconds / quickest - 1)))))));
}

/** Measured steps of a strategy: first interleaved trials, the only comparable ones. */
function measuredSteps(name, view) {
  const trials = (view.race ?? []).map((one, index) => [one, index])
    .filter(([one]) => one.strategy === name && one.num_rounds > 0)
    .map(([one, index]) => h('div', {class: 'in-trials'},
      `${trialStep(one, index)}, r = ${one.threads.join(', ')}, trials: ${verdict(one, index)} `,
      h('span', {class: 'name'}, `(${index === 0 ? '' : `${trialLimits(one)}, `}${plural(one.num_rounds, 'round')})`)));
  const apart = view.measured.filter((one) => one.strategy === name).map((one) => h('div', {class: 'not-in-trials'},
    `${time(one.step_seconds)}, r = ${one.threads.join(', ')}, `,
    h('span', {class: 'name', title: one.run},
      `${one.is_own ? 'this run' : `another run, not comparable: ${short(one.run, 30)}`} (${plural(one.num_steps, 'step')}${one.is_own ? ' under the plan, not comparable' : ''})`)));
  return trials.length + apart.length === 0 ? '-' : [...trials, ...apart];
}

function scaleChart(element, studies, strategies) {
  const colors = strategyColors(strategies.map((one) => one.name));
  const libra = strategies.filter((one) => one.name === 'libra');
  const ordered = [...libra, ...strategies.filter((one) => one.name !== 'libra')];
  const at = studies.map((study) => {
    const found = new Map(best(study.rows).map((row) => [row.strategy, row]));
    return {workers: study.num_workers, found};
  }).filter(({found}) => found.has('libra'));
  const traces = ordered.map(({name, is_ideal: ideal}) => {
    const some = at.filter(({found}) => found.has(name));
    if (some.length === 0) return null;
    return {
      name: plain(strategy(name)), type: 'scatter', mode: 'lines+markers',
      x: some.map(({workers}) => workers),
      y: some.map(({found}) => found.get(name).backward_seconds / found.get('libra').backward_seconds),
      text: some.map(({found}) => time(found.get(name).backward_seconds)),
      hovertemplate: `%{x} workers: %{text} (× %{y:.3f})<extra>${strategy(name)}</extra>`,
      line: {color: colors.get(name), width: name === 'libra' ? 3 : 2, dash: ideal ? 'dot' : 'solid'},
      marker: {size: 6},
    };
  }).filter((trace) => trace !== null);
  const sizes = studies.map((study) => study.num_workers);
  const ratios = traces.flatMap((trace) => trace.y);
  const values = ratioTicks(Math.min(...ratios), Math.max(...ratios));
  return chart(element, traces, {
    x: {title: 'workers', type: 'log', tickvals: sizes, ticktext: sizes.map(String)},
    y: {title: 'relative to LIBRA', type: 'log', tickvals: values, ticktext: values.map((one) => String(Number(one.toPrecision(3))))}});
}
