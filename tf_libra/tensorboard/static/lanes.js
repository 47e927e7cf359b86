// Timelines above one another on one time axis: computation above, communication below.

import {h, s, Tooltip} from './dom.js';
import {bytes, percent, time} from './format.js';

const GUTTER = 128;
const RIGHT = 12;
const LANE = 26;
const GAP = 4;
const HEADING = 24;
const BETWEEN = 16;
const AXIS = 30;
const LEAST_SECONDS = 1e-6; // no zooming in beyond this
const MARGIN = 0.02;

/** Round steps for an axis of `span` seconds with about `count` ticks. */
function tickStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function interval(at) {
  return at.low === at.high ? time(at.median) : `${time(at.median)} (${time(at.low)} – ${time(at.high)})`;
}

function facts(title, pairs) {
  return [
    h('b', {}, title),
    h('dl', {}, pairs.filter(([, value]) => value !== null).map(([name, value]) =>
      [h('dt', {}, name), h('dd', {}, value)])),
  ];
}

/** A chart of one or more timelines, with zoom, pan and hover. */
export class Lanes {
  constructor() {
    this.tooltip = new Tooltip();
    this.svg = s('svg', {class: 'lanes', role: 'img', 'aria-label': 'Timeline'});
    this.element = h('div', {}, this.svg);
    this.timelines = [];
    this.svg.addEventListener('wheel', (event) => this.#wheel(event), {passive: false});
    this.svg.addEventListener('pointerdown', (event) => this.#grab(event));
    this.svg.addEventListener('dblclick', () => this.reset());
    this.svg.addEventListener('pointerleave', () => this.tooltip.hide());
    this.observer = new ResizeObserver(() => this.#schedule());
    this.observer.observe(this.element);
  }

  /** Shows [title, timeline] pairs. */
  show(timelines) {
    this.timelines = timelines;
    this.end = Math.max(...timelines.map(([, one]) => one.backward.high), LEAST_SECONDS);
    this.reset();
  }

  reset() {
    this.from = -MARGIN * this.end;
    this.to = (1 + 3 * MARGIN) * this.end;
    this.#schedule();
  }

  /** Zooms by a factor around a place of the visible range, from 0 to 1. */
  zoom(factor, place = 0.5) {
    const span = this.to - this.from;
    const whole = (1 + 4 * MARGIN) * this.end;
    const next = Math.min(Math.max(span / factor, LEAST_SECONDS), whole);
    this.from += (span - next) * place;
    this.to = this.from + next;
    this.#keepInside();
  }

  /** Moves by a share of the visible range. */
  pan(share) {
    const move = share * (this.to - this.from);
    this.from += move;
    this.to += move;
    this.#keepInside();
  }

  dispose() {
    this.observer.disconnect();
    this.tooltip.element.remove();
  }

  #keepInside() {
    const span = this.to - this.from;
    const least = -MARGIN * this.end;
    const most = (1 + 3 * MARGIN) * this.end;
    this.from = Math.min(Math.max(this.from, least), most - span);
    this.to = this.from + span;
    this.#schedule();
  }

  #schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  #wheel(event) {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan((event.deltaX || event.deltaY) / 1000);
      return;
    }
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    this.zoom(1.0015 ** -event.deltaY, Math.min(Math.max((x - GUTTER) / this.plotWidth, 0), 1));
  }

  #grab(event) {
    if (event.button !== 0) return;
    let last = event.clientX;
    this.svg.setPointerCapture(event.pointerId);
    this.svg.classList.add('dragging');
    this.tooltip.hide();
    const move = (next) => {
      this.pan((last - next.clientX) / this.plotWidth);
      last = next.clientX;
    };
    const drop = () => {
      this.svg.classList.remove('dragging');
      this.svg.removeEventListener('pointermove', move);
    };
    this.svg.addEventListener('pointermove', move);
    this.svg.addEventListener('pointerup', drop, {once: true});
    this.svg.addEventListener('pointercancel', drop, {once: true});
  }

  #x(seconds) {
    return GUTTER + ((seconds - this.from) / (this.to - this.from)) * this.plotWidth;
  }

  #draw() {
    const width = this.element.clientWidth;
    if (width === 0 || this.timelines.length === 0) return;
    this.plotWidth = Math.max(width - GUTTER - RIGHT, 50);
    const parts = [];
    let y = 0;
    for (const [title, timeline] of this.timelines) {
      const lanes = 2 + Math.max(...timeline.spans.map((span) => span.stream), 0);
      parts.push(this.#timeline(title, timeline, y));
      y += HEADING + lanes * (LANE + GAP) + BETWEEN;
    }
    const height = y + AXIS;
    this.svg.setAttribute('height', height);
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.dataset.from = this.from;
    this.svg.dataset.to = this.to;
    const clip = s('clipPath', {id: 'plot-area'},
      s('rect', {x: GUTTER, y: 0, width: this.plotWidth, height}));
    this.svg.replaceChildren(s('defs', {}, clip), this.#axis(y), ...parts);
  }

  #axis(y) {
    const step = tickStep(this.to - this.from, this.plotWidth / 90);
    const ticks = s('g', {});
    for (let i = Math.ceil(Math.max(this.from, 0) / step); i * step <= this.to; i += 1) {
      const x = this.#x(i * step);
      ticks.append(
        s('line', {class: 'gridline', x1: x, x2: x, y1: 0, y2: y}),
        s('text', {class: 'muted', x, y: y + 18, 'text-anchor': 'middle'},
          time(i * step, 6)),
      );
    }
    return ticks;
  }

  #timeline(title, timeline, top) {
    const lane = (row) => top + HEADING + row * (LANE + GAP);
    const labels = [
      s('text', {class: 'heading', x: 0, y: top + 15}, title),
      s('text', {class: 'muted', x: 0, y: lane(0) + 17}, 'computation'),
      s('text', {class: 'muted', x: 0, y: lane(1) + 17}, 'communication'),
    ];
    const bars = s('g', {'clip-path': 'url(#plot-area)'});
    for (const piece of timeline.computation) bars.append(...this.#computation(piece, timeline, lane(0)));
    for (const span of timeline.spans) {
      bars.append(...this.#communication(span, timeline, lane(1 + span.stream)));
    }
    const end = this.#x(timeline.backward.median);
    const bottom = lane(2 + Math.max(...timeline.spans.map((span) => span.stream), 0)) - GAP;
    bars.append(
      s('line', {class: 'end', x1: end, x2: end, y1: top + 18, y2: bottom}),
      s('text', {x: end - 4, y: top + 15, 'text-anchor': 'end', class: 'backward'},
        `backward ${time(timeline.backward.median)}`),
    );
    return s('g', {class: 'timeline', 'data-kind': timeline.kind}, labels, bars);
  }

  #bar(kind, from, to, y, label, content) {
    const left = Math.max(this.#x(from), GUTTER - 2);
    const right = Math.min(this.#x(to), GUTTER + this.plotWidth + 2);
    if (right < left) return [];
    const width = Math.max(right - left, 0.75);
    const rect = s('rect', {
      class: `bar ${kind}`, x: left, y, width, height: LANE, rx: Math.min(width / 4, 3),
      onpointermove: (event) => {
        if (!this.svg.classList.contains('dragging')) this.tooltip.show(event, ...content());
      },
      onpointerleave: () => this.tooltip.hide(),
    });
    const text = label.find((one) => one.length * 6.4 + 10 < width);
    if (!text) return [rect];
    return [rect, s('text', {class: `in-bar on-${kind}`, x: left + width / 2, y: y + 17, 'text-anchor': 'middle'}, text)];
  }

  #computation(piece, timeline, y) {
    const beside = piece.beside ?? [];
    const slow = piece.rate !== null && piece.rate < 1;
    const label = slow ? [`at ${percent(piece.rate, 0)}`] : [];
    return this.#bar(slow ? 'compute-slow' : 'compute', piece.from, piece.to, y, label, () =>
      facts('Backward computation', [
        ['from', time(piece.from)],
        ['to', time(piece.to)],
        ['takes', time(piece.to - piece.from)],
        ['beside', beside.length === 0 ? null : `the all-reduce of ${beside.map((k) => `group ${k}`).join(', ')}`],
        ['keeps', slow ? `${percent(piece.rate)} of its speed` : null],
        ['all of it', interval(timeline.compute)],
      ]));
  }

  #communication(span, timeline, y) {
    const computed = timeline.compute.median;
    const [from, to] = [span.from.median, span.to.median];
    const content = () => {
      const residual = Math.max(to - Math.max(computed, from), 0);
      return facts(span.group < 0 ? 'An all-reduce outside of the plan' : `Group ${span.group}`, [
        ['tensors', span.start === null ? null
          : `${span.stop - span.start} (${span.start}–${span.stop - 1})`],
        ['size', bytes(span.num_bytes)],
        ['threads', `r = ${span.num_threads}`],
        ['complete at', interval(span.ready)],
        ['starts', interval(span.from)],
        ['ends', interval(span.to)],
        ['takes', time(to - from)],
        ['overlapped', time(to - from - residual)],
        ['residual', time(residual)],
        ['steps', timeline.num_steps === null ? null : `median of ${timeline.num_steps}, with quartiles`],
      ]);
    };
    const label = [`group ${span.group} · r = ${span.num_threads}`, `${span.group} · r${span.num_threads}`];
    const drawn = [];
    if (from < computed) {
      drawn.push(...this.#bar('overlap', from, Math.min(to, computed), y, label, content));
    }
    if (to > computed) {
      const rest = from < computed ? ['residual'] : label;
      drawn.push(...this.#bar('residual', Math.max(from, computed), to, y, rest, content));
    }
    for (const at of [span.from, span.to]) {
      if (at.low < at.high) drawn.push(this.#whisker(at, y));
    }
    for (const rect of drawn) rect.dataset.group = span.group;
    return drawn;
  }

  #whisker(at, y) {
    const [low, high, middle] = [this.#x(at.low), this.#x(at.high), y + LANE / 2];
    const cap = (x) => `M${x} ${middle - 4}V${middle + 4}`;
    return s('path', {class: 'whisker', d: `M${low} ${middle}H${high}${cap(low)}${cap(high)}`, fill: 'none'});
  }
}

export function legend(measured) {
  const entry = (kind, text) => h('span', {}, h('i', {class: `swatch ${kind}`}), text);
  return h('div', {class: 'key'},
    entry('compute', 'computation'),
    entry('compute-slow', 'computation slowed by communication'),
    entry('overlap', 'all-reduce that computation overlaps'),
    entry('residual', 'residual communication: nothing overlaps it'),
    measured ? h('span', {}, '├─┤ quartiles over steps') : null);
}

