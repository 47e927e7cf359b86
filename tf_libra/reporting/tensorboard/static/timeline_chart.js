// Chart of timelines on one time axis, each with computation above communication.

import {h, s, Tooltip} from './dom.js';
import {bytes, percent, tick, tickStep, time} from './format.js';

const GUTTER = 128;
const RIGHT = 12;
const LANE = 26;
const GAP = 4;
const HEADING = 24;
const BETWEEN = 16;
const AXIS = 30;
const HALF_LABEL = 24; // half the width of an axis label
const WHISKER_WIDTH = 24; // least width of bars with whiskers
const LEAST_SECONDS = 1e-6; // smallest visible range
const MARGIN = 0.02;
let count = 0;

/** Idle times of a stream before its first and between its all-reduces. */
function gaps(timeline) {
  const found = [];
  const streams = Map.groupBy
    ? Map.groupBy(timeline.spans, (span) => span.stream)
    : timeline.spans.reduce((all, span) => all.set(span.stream, [...(all.get(span.stream) ?? []), span]), new Map());
  for (const [stream, spans] of streams) {
    let free = timeline.kind === 'rank' ? spans[0].from.median : 0;
    for (const span of [...spans].sort((a, b) => a.from.median - b.from.median)) {
      const from = span.from.median;
      if (from - free > 1e-3 * timeline.backward.median) {
        found.push({stream, group: span.group, from: free, to: from, ready: span.ready.median});
      }
      free = Math.max(free, span.to.median);
    }
  }
  return found;
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

/** Chart of one or more timelines, with zoom, pan and hover. */
export class TimelineChart {
  /** Calls `onpick` with a clicked group, and `onzoom` with the visible range. */
  constructor({onpick = () => {}, onzoom = () => {}} = {}) {
    this.onpick = onpick;
    this.onzoom = onzoom;
    this.selected = null;
    this.tooltip = new Tooltip();
    this.svg = s('svg', {class: 'lanes', role: 'img', tabindex: 0,
      'aria-label': 'Timeline. Plus and minus zoom, arrows move, Home shows everything.'});
    this.element = h('div', {}, this.svg);
    this.timelines = [];
    this.clipId = `plot-area-${count += 1}`;
    this.svg.addEventListener('wheel', (event) => this.#wheel(event), {passive: false});
    this.svg.addEventListener('pointerdown', (event) => this.#grab(event));
    this.svg.addEventListener('dblclick', () => this.reset());
    this.svg.addEventListener('keydown', (event) => this.#key(event));
    this.svg.addEventListener('click', (event) => {
      const group = event.target.dataset?.group;
      if (group !== undefined && !this.moved) this.onpick(Number(group));
    });
    this.svg.addEventListener('pointerleave', () => this.tooltip.hide());
    this.observer = new ResizeObserver(() => this.#schedule());
    this.observer.observe(this.element);
  }

  /** Shows [title, timeline] pairs, in a visible `range` or completely. */
  show(timelines, range = null) {
    this.timelines = timelines;
    this.end = Math.max(...timelines.flatMap(([, one]) => [one.backward.high, one.next_forward?.end ?? 0]), LEAST_SECONDS);
    this.begin = Math.min(0, ...timelines.flatMap(([, one]) =>
      [...one.spans.map((span) => span.from.median), ...(one.gathers ?? []).map((gather) => gather.from)]));
    if (range === null) {
      this.reset();
      return;
    }
    [this.from, this.to] = range;
    this.#keepInside();
  }

  /** Marks a group; null marks none. */
  select(group) {
    this.selected = group;
    this.#schedule();
  }

  get #least() {
    return this.begin - MARGIN * (this.end - this.begin);
  }

  get #most() {
    return this.end + 3 * MARGIN * (this.end - this.begin);
  }

  #key(event) {
    const action = {
      '+': () => this.zoom(1.6), '=': () => this.zoom(1.6), '-': () => this.zoom(1 / 1.6),
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), Home: () => this.reset(), 0: () => this.reset(),
    }[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  reset() {
    this.from = this.#least;
    this.to = this.#most;
    this.onzoom(null);
    this.#schedule();
  }

  /** Zooms by a factor around a position in the visible range, from 0 to 1. */
  zoom(factor, position = 0.5) {
    const span = this.to - this.from;
    const whole = this.#most - this.#least;
    const next = Math.min(Math.max(span / factor, LEAST_SECONDS), whole);
    this.from += (span - next) * position;
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
    const [least, most] = [this.#least, this.#most];
    const span = Math.min(this.to - this.from, most - least);
    this.from = Math.min(Math.max(this.from, least), most - span);
    this.to = this.from + span;
    this.onzoom([this.from, this.to]);
    this.#schedule();
  }

  #schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  #wheel(event) {
    const zooms = event.ctrlKey || event.metaKey;
    if (!zooms && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    if (!zooms) {
      this.pan((event.deltaX || event.deltaY) / 1000);
      return;
    }
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    this.zoom(1.0015 ** -event.deltaY, Math.min(Math.max((x - GUTTER) / this.plotWidth, 0), 1));
  }

  #grab(event) {
    if (event.button !== 0) return;
    let last = event.clientX;
    const first = last;
    this.moved = false;
    const move = (next) => {
      if (!this.moved && Math.abs(next.clientX - first) < 4) return; // a click
      if (!this.moved) {
        this.moved = true;
        this.svg.setPointerCapture(event.pointerId);
        this.svg.classList.add('dragging');
        this.tooltip.hide();
      }
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
      parts.push(this.#timeline(title, timeline, y));
      y += HEADING + this.#lanesOf(timeline) * (LANE + GAP) + BETWEEN;
    }
    const height = y + AXIS;
    this.svg.setAttribute('height', height);
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.dataset.from = this.from;
    this.svg.dataset.to = this.to;
    const clip = s('clipPath', {id: this.clipId},
      s('rect', {x: GUTTER, y: 0, width: this.plotWidth, height}));
    this.svg.replaceChildren(s('defs', {}, clip), this.#axis(y), ...parts);
  }

  #axis(y) {
    const step = tickStep(this.to - this.from, this.plotWidth / 90);
    const ticks = s('g', {});
    for (let i = Math.ceil(this.from / step); i * step <= this.to; i += 1) {
      const x = this.#x(i * step);
      ticks.append(
        s('line', {class: 'gridline', x1: x, x2: x, y1: 0, y2: y}),
        s('text', {class: 'muted', x, y: y + 18, 'text-anchor': 'middle'},
          x + HALF_LABEL > GUTTER + this.plotWidth + RIGHT ? '' : tick(i * step, step, this.end)),
      );
    }
    return ticks;
  }

  #timeline(title, timeline, top) {
    const lane = (row) => top + HEADING + row * (LANE + GAP);
    const computes = timeline.computation.length > 0;
    const first = computes ? 1 : 0;
    const labels = [
      s('text', {class: 'heading', x: 0, y: top + 15}, title, s('tspan', {class: 'muted', dx: 10}, '·'),
        s('tspan', {class: 'backward', dx: 10}, `${timeline.kind === 'rank' ? 'ends at' : 'backward'} ${time(timeline.backward.median)}`)),
      computes ? s('text', {class: 'muted', x: 0, y: lane(0) + 17}, 'computation') : null,
      s('text', {class: 'muted', x: 0, y: lane(first) + 17}, 'communication'),
    ];
    const bars = s('g', {'clip-path': `url(#${this.clipId})`});
    for (const piece of timeline.computation) bars.append(...this.#computation(piece, timeline, lane(0)));
    for (const gap of gaps(timeline)) bars.append(...this.#gap(gap, lane(first + gap.stream)));
    for (const span of timeline.spans) {
      const draw = timeline.kind === 'rank' ? this.#exchange : this.#communication;
      bars.append(...draw.call(this, span, timeline, lane(first + span.stream)));
    }
    if (timeline.gathers?.length > 0) {
      const row = lane(this.#streamLanesOf(timeline));
      labels.push(s('text', {class: 'muted', x: 0, y: row + 17}, 'gathers'));
      for (const gather of timeline.gathers) bars.append(...this.#gather(gather, row));
    }
    const mark = (seconds) => {
      const x = this.#x(seconds);
      bars.append(s('line', {class: 'end', x1: x, x2: x, y1: top + 18, y2: lane(this.#lanesOf(timeline)) - GAP}));
    };
    mark(timeline.backward.median);
    if (timeline.next_forward) {
      bars.append(...this.#nextForward(timeline, lane(0), lane(first)));
      mark(timeline.next_forward.boundary);
    }
    return s('g', {class: 'timeline', 'data-kind': timeline.kind}, labels, bars);
  }

  #lanesOf(timeline) {
    return this.#streamLanesOf(timeline) + (timeline.gathers?.length > 0 ? 1 : 0);
  }

  #streamLanesOf(timeline) {
    return (timeline.computation.length > 0 ? 2 : 1) + Math.max(...timeline.spans.map((span) => span.stream), 0);
  }

  /** Gather of weights on one rank; under the forward pass, one that the step before has begun. */
  #gather(gather, y) {
    const name = gather.num_tensors === 0 ? 'Sums of parts' : `Gather${gather.group < 0 ? '' : ` ${gather.group}`}`;
    const content = () => facts(name, [
      ['tensors', gather.num_tensors === 0 ? null : `${gather.num_tensors}`],
      ['size', bytes(gather.num_bytes)],
      ['threads', `r = ${gather.num_threads}`],
      ['starts', time(gather.from)],
      ['ends', time(gather.to)],
    ]);
    return this.#bar('overlap', gather.from, gather.to, y, [`r = ${gather.num_threads}`], content);
  }

  /** Idle time of a stream: gradients are missing, or a complete group has not started. */
  #gap(gap, y) {
    const missing = Math.min(Math.max(gap.ready, gap.from), gap.to);
    const content = () => facts(`Before group ${gap.group}`, [
      ['duration', time(gap.to - gap.from)],
      ['waits for its gradients', missing > gap.from ? time(missing - gap.from) : null],
      ['complete, but not started', gap.to > missing ? time(gap.to - missing) : null],
    ]);
    return this.#bar('gap', gap.from, gap.to, y, [], content);
  }

  /** All-reduce of one rank: the wait for other ranks, then the exchange. */
  #exchange(span, timeline, y) {
    const content = () => facts(span.group < 0 ? 'All-reduce outside of the plan' : `Group ${span.group}`, [
      ['size', bytes(span.num_bytes)],
      ['threads', `r = ${span.num_threads}`],
      ['complete at', time(span.ready.median)],
      ['starts', time(span.from.median)],
      ['waits for other ranks', time(span.exchange - span.from.median)],
      ['exchanges', time(span.to.median - span.exchange)],
      ['ends', time(span.to.median)],
    ]);
    const label = [`group ${span.group} · r = ${span.num_threads}`, `${span.group} · r${span.num_threads}`, `${span.group}`];
    const drawn = [
      ...(span.exchange > span.from.median ? this.#bar('wait', span.from.median, span.exchange, y, [], content) : []),
      ...this.#bar('overlap', span.exchange, span.to.median, y, label, content),
    ];
    for (const rect of drawn) this.#belongs(rect, span.group);
    return drawn;
  }

  #belongs(rect, group) {
    rect.dataset.group = group;
    if (String(this.selected) === String(group)) rect.classList.add('selected');
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
    return [rect, s('text', {class: `in-bar on-${kind}`, x: left + width / 2, y: y + 14, 'text-anchor': 'middle'}, text)];
  }

  #computation(piece, timeline, y) {
    const groups = piece.overlapped_groups ?? [];
    const slow = piece.rate !== null && piece.rate < 1;
    const label = slow ? [`at ${percent(piece.rate, 0)}`] : [];
    return this.#bar(slow ? 'compute-slow' : 'compute', piece.from, piece.to, y, label, () =>
      facts('Backward computation', [
        ['from', time(piece.from)],
        ['to', time(piece.to)],
        ['duration', time(piece.to - piece.from)],
        ['overlaps', groups.length === 0 ? null : groups.map((group) => `group ${group}`).join(', ')],
        ['speed', slow ? percent(piece.rate) : null],
        ['whole computation', interval(timeline.compute)],
      ]));
  }

  #communication(span, timeline, y) {
    const computed = timeline.compute.median;
    const [from, to] = [span.from.median, span.to.median];
    const content = () => {
      const residual = Math.max(to - Math.max(computed, from), 0);
      return facts(span.group < 0 ? 'All-reduce outside of the plan' : `Group ${span.group}`, [
        ['tensors', span.start === null ? null
          : `${span.stop - span.start} (${span.start}–${span.stop - 1})`],
        ['size', bytes(span.num_bytes)],
        ['threads', `r = ${span.num_threads}`],
        ['complete at', interval(span.ready)],
        ['starts', interval(span.from)],
        ['ends', interval(span.to)],
        ['duration', time(to - from)],
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
    // Narrow bars have no room for whiskers; the selected group always has them.
    if (this.#x(to) - this.#x(from) >= WHISKER_WIDTH || this.selected === span.group) {
      for (const at of [span.from, span.to]) {
        if (at.low < at.high) drawn.push(this.#whisker(at, y));
      }
    }
    for (const rect of drawn) this.#belongs(rect, span.group);
    return drawn;
  }

  /** Updates up to the step's boundary, then gathers, and the layers that they let compute. */
  #nextForward(timeline, computation, communication) {
    const {boundary, delay, gathers} = timeline.next_forward;
    const updates = () => facts('Updates after backward', [['from', time(timeline.backward.median)], ['to', time(boundary)]]);
    const drawn = boundary > timeline.backward.median
      ? this.#bar('compute', timeline.backward.median, boundary, computation, ['updates'], updates) : [];
    for (const [index, one] of gathers.entries()) {
      const content = () => facts(`Gather ${index}`, [
        ['tensors', `${one.stop - one.start} (${one.stop - 1}–${one.start})`],
        ['size', bytes(one.num_bytes)],
        ['threads', `r = ${one.num_threads}`],
        ['starts', time(one.from)],
        ['ends', time(one.to)],
        ['its layers compute', `${time(one.layers_from)} – ${time(one.layers_to)}`],
        ['all gathers delay the forward pass by', time(delay)],
      ]);
      const bars = [
        ...this.#bar('overlap', one.from, one.to, communication, [`gather ${index} · r = ${one.num_threads}`, `${index}`], content),
        ...this.#bar('compute', one.layers_from, one.layers_to, computation, ['forward'], content)];
      for (const bar of bars) bar.dataset.gather = index;
      drawn.push(...bars);
    }
    return drawn;
  }

  // Whiskers are at the lower edge, below the labels.
  #whisker(at, y) {
    const [low, high, middle] = [this.#x(at.low), this.#x(at.high), y + LANE - 4];
    const cap = (x) => `M${x} ${middle - 3}V${middle + 3}`;
    return s('path', {class: 'whisker', d: `M${low} ${middle}H${high}${cap(low)}${cap(high)}`, fill: 'none'});
  }
}
