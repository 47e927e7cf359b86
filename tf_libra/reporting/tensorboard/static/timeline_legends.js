// Legends of timelines.

import {h} from './dom.js';

const entry = (kind, text) => h('span', {}, h('i', {class: `swatch ${kind}`}), text);

export function rankLegend() {
  return h('div', {class: 'key'},
    entry('compute', 'traced computation'),
    entry('wait', 'all-reduce waiting for other ranks'),
    entry('overlap', 'all-reduce exchanging'),
    entry('gap', 'no all-reduce'));
}

export function legend(measured) {
  return h('div', {class: 'key'},
    entry('compute', 'computation'),
    entry('compute-slow', 'computation slowed by communication'),
    entry('overlap', 'overlapped all-reduce'),
    entry('residual', 'residual communication'),
    entry('gap', 'no all-reduce'),
    measured ? h('span', {}, '├─┤ quartiles over steps, on wide bars and the selected group') : null);
}

