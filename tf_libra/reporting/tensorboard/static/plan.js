// View 1: groups of a plan, with the reasons for each.

import {h, longList, s} from './dom.js';
import {hasGraphs, showInGraphs} from './graph.js';
import {bytes, difference, NO_DIFFERENCE, percent, plural, short, signedPercent, strategy, time, trialLimits, trialStep, verdict} from './format.js';

export async function planView(place, context) {
  const plan = await context.ask('plan', context.plan);
  const facts = h('div', {class: 'grid facts'});
  const detail = h('section', {class: 'card', id: 'detail'});
  const rows = plan.groups.map((group) => row(group, plan, () => context.select(group.group)));
  const {memory} = context;
  const body = h('tbody', {});
  const found = h('span', {class: 'updated', id: 'found'});
  const heads = HEADS.map(([kind, text, key]) => h('th', {class: kind, 'data-key': key},
    h('button', {type: 'button', onclick: () => {
      memory.order = {key, down: memory.order?.key === key && !memory.order.down};
      arrange();
    }}, text)));
  const filter = h('input', {type: 'search', id: 'filter', placeholder: 'name of a tensor, r = 2, or a group', 'aria-label': 'Filter groups',
    value: memory.filter ?? '', oninput: (event) => { memory.filter = event.target.value; arrange(); }});
  const arrange = () => {
    const {key, down} = memory.order ?? {key: 'group', down: false};
    const wanted = (memory.filter ?? '').trim().toLowerCase();
    const shown = plan.groups.filter((group) => matches(group, plan, wanted));
    const value = (group) => (key === 'size' ? group.num_bytes : group[key] ?? 0);
    shown.sort((a, b) => (down ? -1 : 1) * (value(a) - value(b)) || a.group - b.group);
    body.replaceChildren(...shown.map((group) => rows[group.group]));
    found.textContent = wanted ? `${shown.length} of ${plan.groups.length}` : '';
    for (const head of heads) {
      head.removeAttribute('aria-sort');
      if (head.dataset.key === key) head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    }
  };
  arrange();
  const strip = plan.groups.length > 12 && plan.totals ? overview(plan, (group) => {
    context.select(group);
    rows[group].scrollIntoView({block: 'nearest'});
  }) : null;
  place.replaceChildren(
    another(plan),
    facts,
    race(plan),
    search(plan),
    whereTimeGoes(plan),
    h('div', {class: 'grid split'},
      h('section', {class: 'card'},
        h('h2', {}, `${plural(plan.groups.length, 'tensor group')}, in backward order`),
        h('p', {class: 'lead'}, 'In the order in which backward computation produces the gradients. Click a group for the reasons.'),
        plan.groups.length > 8 ? h('div', {class: 'toolbar'}, filter, found) : null,
        strip,
        h('div', {class: 'scroll'}, h('table', {id: 'groups'},
          h('thead', {}, h('tr', {}, heads)),
          body)),
        plan.notes.map((note) => h('p', {class: 'note name'}, note))),
      detail),
    about(plan, context));
  let picked = null;
  const pick = async (index) => {
    picked = index;
    for (const [k, one] of rows.entries()) one.setAttribute('aria-selected', String(k === index));
    for (const one of strip?.querySelectorAll('.back') ?? []) one.classList.toggle('chosen', one.dataset.group === String(index));
    try {
      const group = await context.askOnce('group', {...context.plan, group: index});
      if (picked === index) showGroup(detail, group, plan, context.plan.run);
    } catch (error) {
      if (picked === index) detail.replaceChildren(h('p', {class: 'bad'}, error.message));
    }
  };
  // Planning with every strategy takes seconds for thousands of tensors, so the card fills later.
  let gained = gain(plan, null);
  const show = (card) => { gained.replaceWith(card); gained = card; };
  context.askOnce('strategies', context.plan)
    .then((table) => show(gain(plan, table)), (error) => show(gainFailure(plan, error)));
  facts.replaceChildren(gained, bottleneck(plan), threads(plan), h('section', {class: 'card fact', id: 'model'}));
  context.onselect((group) => pick(group ?? plan.bottleneck ?? 0));
  await pick(context.group ?? plan.bottleneck ?? 0);
  const [contention, measured] = await Promise.all([
    context.askOnce('contention', context.plan),
    context.ask('timeline', {...context.plan, show: 'measured'}),
  ]);
  facts.replaceChildren(gained, bottleneck(plan), threads(plan), model(plan, contention, measured));
  context.ready();
}

const HEADS = [
  ['left', 'Group', 'group'], ['', 'Tensors', 'start'], ['', 'Size', 'size'], ['', 'Threads', 'num_threads'],
  ['left wide', 'Predicted all-reduce', 'start_seconds'], ['', 'Start', 'start_seconds'], ['', 'End', 'end_seconds'], ['', 'Cost', 'lost_seconds'],
];

function matches(group, plan, wanted) {
  if (!wanted) return true;
  const threads = /^r\s*=\s*(\d+)$/.exec(wanted);
  if (threads) return group.num_threads === Number(threads[1]);
  if (/^\d+$/.test(wanted)) return group.group === Number(wanted);
  return plan.tensor_names.slice(group.start, group.stop).some((name) => name.toLowerCase().includes(wanted));
}

/** Bars of all groups with their costs; a click selects a group. */
function overview(plan, pick) {
  const count = plan.groups.length;
  const most = Math.max(...plan.groups.map((group) => group.lost_seconds ?? 0), 1e-12);
  const bars = plan.groups.map((group) => {
    const slowed = (46 * (group.slowed_seconds ?? 0)) / most;
    const alone = (46 * (group.residual_communication_seconds ?? 0)) / most;
    const title = s('title', {}, `group ${group.group}: costs ${time(group.lost_seconds)}`);
    return s('g', {onclick: () => pick(group.group)},
      s('rect', {class: 'back', 'data-group': group.group, x: group.group + 0.05, y: 0, width: 0.9, height: 50}, title),
      s('rect', {class: 'compute-slow', x: group.group + 0.1, y: 50 - slowed, width: 0.8, height: slowed, 'pointer-events': 'none'}),
      s('rect', {class: 'residual', x: group.group + 0.1, y: 50 - slowed - alone, width: 0.8, height: alone, 'pointer-events': 'none'}));
  });
  return s('svg', {class: 'overview', id: 'overview', viewBox: `0 0 ${count} 50`, preserveAspectRatio: 'none', role: 'img',
    'aria-label': 'Cost of each group: contention and residual communication'}, bars);
}

/** Message about a plan of another strategy than the requested one. */
function another(plan) {
  if (!plan.another) return '';
  return h('section', {class: 'card message', id: 'another'}, h('p', {}, plan.another));
}

/** Model, hosts, date and versions. */
function about(plan, context) {
  const {heading} = context;
  const when = heading.written === undefined ? null : new Date(1e3 * heading.written).toLocaleString('en-GB', {dateStyle: 'long', timeStyle: 'short'});
  const hosts = plan.hosts.length > 0 ? `on ${plan.hosts.map((host) => short(host, 40)).join(', ')}` : null;
  const model = `${short(plan.function, 60)}: ${plural(plan.num_tensors, 'gradient')}, ${bytes(plan.num_bytes)}`;
  return h('p', {class: 'note name', id: 'about'}, [model, `${plan.num_workers} workers`, hosts, when && `active since ${when}`, ...plan.versions].filter(Boolean).join(' · '));
}

/** Card of interleaved trials before the activation. */
function race(plan) {
  if (plan.race === null || plan.race[0].seconds === null) return '';
  const [winner, ...others] = plan.race;
  const named = (one) => `${strategy(one.strategy)} in ${one.groups}`;
  return h('section', {class: 'card', id: 'race'},
    h('h2', {}, 'Measured: interleaved trials'),
    h('p', {class: 'lead'},
      `Training steps alternated between ${plural(plan.race.length, 'plan')}; plans that cannot win dropped out. Median step of ${named(winner)}, the active plan: ${time(winner.seconds)}. Steps of the others are relative to adjacent steps of the active plan${others.every((one) => one.is_noise) ? `: ${NO_DIFFERENCE}` : ''}.`),
    h('div', {class: 'scroll'}, h('table', {id: 'race-table'},
      h('thead', {}, h('tr', {}, [
        ['left', 'Plan'], ['', 'Threads'], ['', 'Step, measured'], ['', '99 % confidence'], ['left', 'against the active plan'],
        ['', 'Step, predicted'], ['', 'Rounds'],
      ].map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, plan.race.map((one, index) => h('tr', {'data-fingerprint': one.fingerprint},
        h('td', {class: 'left'}, named(one)),
        h('td', {}, one.threads.join(', ')),
        h('td', {'data-ratio': one.ratio}, trialStep(one, index)),
        h('td', {}, trialLimits(one)),
        h('td', {class: `left ${index > 0 && !one.is_noise && one.ratio > 1 ? 'bad' : ''}`}, index === 0 ? h('span', {class: 'badge'}, verdict(one, index)) : verdict(one, index)),
        h('td', {}, index > 0 && one.predicted_ratio !== null ? signedPercent(one.predicted_ratio - 1) : time(one.predicted_seconds)),
        h('td', {}, String(one.num_rounds))))))));
}

/** Card of the search of settings. */
function search({search: searched}) {
  if (!searched || searched.best === null) return '';
  const words = (one) => `units of ${bytes(one.unit_bytes)}, ${plural(one.num_streams, 'stream')}, r = ${one.num_threads}`;
  const by = searched.searchers.map((one) => `${one.name} ${plural(one.num_steps, 'step')} (${plural(one.new_bests, 'new best')})`);
  return h('section', {class: 'card', id: 'search'},
    h('h2', {}, 'Measured: search of settings'),
    h('p', {class: 'lead'},
      `${plural(searched.trials.length, 'training step')} under ${plural(searched.num_settings, 'setting')}. Best: ${words(searched.best)}. Searchers: ${by.join(', ')}.`),
    h('div', {class: 'scroll'}, h('table', {id: 'search-table'},
      h('thead', {}, h('tr', {}, [
        ['', 'Trial'], ['left', 'Searcher'], ['', 'Unit'], ['', 'Streams'], ['', 'Threads'], ['', 'Step, measured'], ['left', ''],
      ].map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, searched.trials.map((one, index) => h('tr', {'data-searcher': one.searcher},
        h('td', {}, String(index + 1)),
        h('td', {class: 'left'}, one.searcher),
        h('td', {}, bytes(one.unit_bytes)),
        h('td', {}, String(one.num_streams)),
        h('td', {}, String(one.num_threads)),
        h('td', {'data-seconds': one.seconds}, time(one.seconds)),
        h('td', {class: 'left'}, one.found_best ? h('span', {class: 'badge'}, 'new best') : '')))))));
}

function fact(question, answer, because, kind = '', id = '') {
  return h('section', {class: 'card fact', id},
    h('div', {class: 'question'}, question),
    h('div', {class: `answer ${kind}`}, answer),
    h('p', {class: 'because'}, because));
}

function bottleneck(plan) {
  const question = 'Which group is the bottleneck?';
  if (plan.bottleneck === null) {
    return fact(question, '-', 'No prediction, as nothing was measured.', '', 'bottleneck');
  }
  const group = plan.groups[plan.bottleneck];
  const residual = group.residual_communication_seconds;
  const because = `Predicted: it costs backward the most, ${time(group.lost_seconds)} (${percent(group.lost_seconds / plan.totals.backward_seconds)}): ${time(group.slowed_seconds)} of contention, ${time(residual)} of residual communication.`;
  return fact(question, `Group ${group.group}`, because, '', 'bottleneck');
}

function threads(plan) {
  const counts = plan.groups.map((group) => group.num_threads);
  const kinds = [...new Set(counts)].sort((a, b) => a - b);
  const answer = counts.length <= 8 ? `r = ${counts.join(' · ')}` : `r = ${kinds.join(', ')}`;
  const chosen = plan.threads.length > 1
    ? `One count per group, from {${plan.threads.join(', ')}}. Click a group for the cost of half and twice as many.`
    : `The strategy uses r = ${plan.threads[0]} for every group.`;
  return fact('How many communication threads?', answer, chosen, '', 'threads');
}

function model(plan, contention, measured) {
  const question = 'How good is the model?';
  const held = contention.held_out_error;
  const parts = [];
  if (contention.median_error !== null) {
    parts.push(`Median error of overlapped or of exclusive all-reduces, whichever is larger: ${percent(contention.median_error)} over ${plural(contention.samples.length, 'sample')}.`);
  }
  if (measured !== null && plan.predicted_seconds !== null) {
    const error = plan.predicted_seconds / measured.backward.median - 1;
    parts.push(`Backward under this plan: predicted ${time(plan.predicted_seconds)}, measured ${time(measured.backward.median)} (${signedPercent(error)}).`);
  }
  if (held === null) {
    return fact(question, 'not tested', parts.join(' ') || 'This job has fitted no model.', '', 'model');
  }
  const backward = contention.held_out_backward_error;
  const onBackward = backward === null ? '' : `; on their backward: ${percent(backward)}`;
  parts.unshift(`Median error on held-out steps, under plans outside of the fit${onBackward}.`);
  const kind = contention.is_accurate ? 'good' : held > 0.25 ? 'bad' : '';
  return fact(question, `off by ${percent(held)}`, parts.join(' '), kind, 'model');
}

/** Card of the plan's gain; `table` has the predictions of every strategy, null while pending. */
function gain(plan, table) {
  const question = `What does ${strategy(plan.strategy)} gain here?`;
  const words = table === null ? ['Planning with every strategy …'] : predictedGain(plan, table);
  const raced = plan.race?.slice(1).filter((one) => one.ratio !== null) ?? [];
  let card;
  if (raced.length > 0) {
    card = gainOf(question, plan, raced, words?.join(' ') ?? '');
  } else if (table === null) {
    card = fact(question, '…', words[0], '', 'gain');
  } else if (words === null) {
    card = fact(question, '-', 'No comparison, as nothing was measured.', '', 'gain');
  } else {
    card = fact(question, `${words.change}, predicted`, [...words, 'No interleaved trials were run, so the gain is not measured.'].join(' '), '', 'gain');
  }
  card.toggleAttribute('data-pending', table === null);
  return card;
}

function gainFailure(plan, error) {
  return fact(`What does ${strategy(plan.strategy)} gain here?`, '-', `The comparison failed: ${error.message}`, '', 'gain');
}

/** Sentences on the prediction against other strategies; null without a prediction. */
function predictedGain(plan, table) {
  const own = plan.predicted_seconds;
  const others = table.rows.filter((one) => one.backward_seconds !== null
    && !one.is_ideal && one.strategy !== plan.strategy && !one.strategy.startsWith('libra'));
  if (own === null || others.length === 0) return null;
  const best = others.reduce((a, b) => (b.backward_seconds < a.backward_seconds ? b : a));
  const wfbp = others.find((one) => one.strategy === 'wfbp');
  const change = signedPercent(own / best.backward_seconds - 1);
  const words = [`Predicted backward against the best other strategy, ${strategy(best.strategy)}${best.num_threads === null ? '' : ` with r = ${best.num_threads}`} (${time(best.backward_seconds)}): ${change}.`];
  if (wfbp && wfbp !== best) words.push(`Against WFBP with r = ${wfbp.num_threads}: ${signedPercent(own / wfbp.backward_seconds - 1)}.`);
  return Object.assign(words, {change});
}

/** Card of the measured gain, against one all-reduce after backward if that was a candidate. */
function gainOf(question, plan, raced, predicted) {
  const {comparison} = plan;
  if (comparison === null) {
    const best = raced[0];
    const told = best.is_noise ? NO_DIFFERENCE : signedPercent(1 / best.ratio - 1);
    return fact(question, told, `Measured in interleaved trials: steps of ${strategy(best.strategy)} in ${best.groups} take ${signedPercent(best.ratio - 1)} (${trialLimits(best)}) against the active plan. ${predicted}`, '', 'gain');
  }
  const told = comparison.is_noise ? NO_DIFFERENCE : signedPercent(comparison.ratio - 1);
  const kind = comparison.is_noise ? '' : comparison.ratio < 1 ? 'good' : 'bad';
  return fact(question, told, `Measured, whole steps in interleaved trials: ${comparison.text}. ${predicted}`, kind, 'gain');
}

function whereTimeGoes(plan) {
  const heading = h('h2', {}, 'Backward time');
  if (!plan.totals) {
    return h('section', {class: 'card'}, heading,
      h('p', {class: 'lead'}, plan.origin === 'given'
        ? 'The user has provided the plan, so this run measured nothing: sizes and threads are known, times are not.'
        : 'No contention model was fitted: sizes and threads are known, predicted times are not.'));
  }
  const parts = [
    ['compute', 'computation', plan.compute_seconds],
    ['compute-slow', 'contention', Math.max(plan.totals.slowed_seconds, 0)],
    ['residual', 'residual communication', plan.totals.residual_communication_seconds],
  ];
  const total = plan.totals.backward_seconds;
  return h('section', {class: 'card', id: 'where'},
    heading,
    h('div', {class: 'parts'}, parts.filter(([, , seconds]) => seconds > 0).map(([kind, text, seconds]) =>
      h('div', {class: kind, title: `${text}: ${time(seconds)}`, style: {flex: `${seconds / total} 1 0`}}))),
    h('div', {class: 'key'},
      parts.map(([kind, text, seconds]) =>
        h('span', {}, h('i', {class: `swatch ${kind}`}), `${text} ${time(seconds)} (${percent(seconds / total)})`)),
      h('span', {}, h('b', {id: 'backward'}, `backward, predicted: ${time(total)}`))));
}

function row(group, plan, onclick) {
  const predicted = group.start_seconds !== undefined;
  const hot = group.group === plan.bottleneck;
  const count = group.stop - group.start;
  return h('tr', {
    class: 'pick', tabindex: 0, 'data-group': group.group, 'aria-selected': 'false', onclick,
    onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); onclick(); } },
  },
  h('td', {class: 'left'}, String(group.group), hot ? h('span', {class: 'badge hot'}, 'bottleneck') : null),
  h('td', {}, count === 1 ? `1 (${group.start})` : `${count} (${group.start}–${group.stop - 1})`),
  h('td', {}, bytes(group.num_bytes)),
  h('td', {}, `r = ${group.num_threads}`),
  h('td', {class: 'wide'}, predicted ? mini(group, plan) : '-'),
  h('td', {}, predicted ? time(group.start_seconds) : '-'),
  h('td', {}, predicted ? time(group.end_seconds) : '-'),
  h('td', {title: predicted ? `${time(group.slowed_seconds)} of contention, ${time(group.residual_communication_seconds)} of residual communication` : null},
    predicted ? time(group.lost_seconds) : '-'));
}

function mini(group, plan) {
  const total = plan.totals.backward_seconds;
  const computed = plan.totals.computation_end_seconds;
  const piece = (kind, from, to) => (to > from
    ? s('rect', {class: kind, x: (1000 * from) / total, y: 3, height: 10, width: Math.max((1000 * (to - from)) / total, 2)})
    : null);
  return s('svg', {class: 'mini', viewBox: '0 0 1000 16', preserveAspectRatio: 'none', 'aria-hidden': 'true'},
    s('rect', {class: 'track', x: 0, y: 7, width: 1000, height: 2}),
    piece('overlap', group.start_seconds, Math.min(group.end_seconds, computed)),
    piece('residual', Math.max(group.start_seconds, computed), group.end_seconds));
}

function showGroup(place, group, plan, run) {
  const why = group.why;
  const heading = plan.groups[group.group];
  place.dataset.group = group.group;
  place.replaceChildren(...[
    h('h2', {}, `Group ${group.group}: ${plural(group.names.length, 'tensor')}, ${bytes(heading.num_bytes)}, r = ${group.num_threads}`),
    plan.has_graph && hasGraphs()
      ? h('p', {class: 'note'}, 'In the graph: ', h('button', {
        type: 'button', class: 'link name', id: 'in-graph', title: 'Show it in the Graphs tab',
        onclick: () => showInGraphs(run, heading.node),
      }, heading.node)) : null,
    why === null
      ? h('p', {class: 'lead'}, 'No reasons, as this run has no fitted model.')
      : h('div', {id: 'why'},
        group.caveat ? h('p', {class: 'note bad', id: 'caveat'}, `Predicted ${group.caveat}:`) : null,
        h('h3', {}, 'Start'), h('p', {}, why.starts),
        h('h3', {}, 'Fusion'), h('p', {}, why.merged),
        h('h3', {}, 'Threads'), h('p', {}, why.threads),
        h('h3', {}, 'Cost of a change'),
        h('p', {class: 'note'}, 'Predicted change of backward time, with everything else unchanged.'),
        changes(why.alternatives)),
    h('h3', {}, 'Tensors'),
    h('div', {class: 'tensor head'}, h('span', {class: 'left'}, ''), h('span', {class: 'left'}, 'name'), h('span', {}, 'size'), h('span', {}, 'computation')),
    longList(group.names.length, 24, (i) => h('div', {class: 'tensor'},
      h('span', {class: 'left'}, String(group.start + i)),
      h('span', {class: 'left one-line', title: group.names[i]}, short(group.names[i], 80)),
      h('span', {}, bytes(group.num_bytes[i])),
      h('span', {}, group.compute_seconds === null ? '-' : time(group.compute_seconds[i]))), {id: 'tensors'}),
  ].filter((child) => child !== null));
}

function changes(alternatives) {
  const most = Math.max(...alternatives.map((one) => Math.abs(one.seconds ?? 0)), 1e-12);
  return alternatives.map((one) => h('div', {class: 'change'},
    h('span', {}, one.change),
    h('span', {class: `cost ${one.seconds > 0 ? 'bad' : one.seconds < 0 ? 'good' : ''}`, 'data-seconds': one.seconds},
      difference(one.seconds)),
    h('span', {class: `bar ${one.seconds < 0 ? 'saves' : 'costs'}`,
      style: {width: `${(100 * Math.abs(one.seconds ?? 0)) / most}%`}})));
}
