// Card of the families of strategies under which a step was tried.

import {h} from './dom.js';
import {short, strategy, time} from './format.js';

/** Card of one comparison, from the answer of `runs`. */
export function familiesCard({function: name, step, active, compared, chosen, trials, rows}) {
  const reference = rows.find((row) => row.name === active)?.measured_seconds ?? null;
  return h('section', {class: 'card families', 'data-function': name},
    h('h2', {class: 'name'}, `${short(name, 60)}: families of strategies after ${step} steps`),
    compared === '' ? null : h('p', {class: 'lead'}, `${compared}.`),
    [chosen, trials].map((text) => text === '' ? null : h('p', {class: 'note'}, `${text}.`)),
    h('div', {class: 'scroll'}, h('table', {},
      h('thead', {}, h('tr', {}, [['left', 'family'], ['', 'predicted step'], ['', 'in trials'], ['', 'ratio'], ['left', '']].map(([kind, text]) => h('th', {class: kind}, text)))),
      h('tbody', {}, rows.map((row) => h('tr', {'data-family': row.name},
        h('td', {class: 'left'}, strategy(row.name), row.arguments === '' ? '' : ` (${row.arguments})`),
        h('td', {}, predicted(row)),
        h('td', {}, row.measured_seconds === null ? '-' : time(row.measured_seconds)),
        h('td', {}, row.measured_seconds === null || reference === null ? '-' : (row.measured_seconds / reference).toFixed(2)),
        h('td', {class: 'left'}, row.name === active ? 'active' : row.left_out === '' ? '' : `left out: ${row.left_out}`)))))));
}

function predicted({predicted_seconds: seconds, is_bound: isBound}) {
  if (seconds === null) return '-';
  return `${isBound ? 'at most ' : ''}${time(seconds)}`;
}
