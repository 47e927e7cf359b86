// Page of the Libra tab: selection of run, plan and view.

import {get, stylesheet} from './api.js';
import {backgroundCards, burstCard} from './burst.js';
import {contentionView} from './contention.js';
import {choice, h} from './dom.js';
import {familiesCard} from './families.js';
import {origin, plural, short, strategy} from './format.js';
import {onReturn} from './graph.js';
import {historyView} from './history.js';
import {pipelineCard} from './pipeline.js';
import {onTensorBoardReload, readPlace, writePlace} from './url_state.js';
import {planView} from './plan.js';
import {strategiesView} from './strategies.js';
import {followTheme} from './theme.js';
import {timelineView} from './timeline.js';

const VIEWS = [
  ['plan', 'Plan', planView],
  ['timeline', 'Timeline', timelineView],
  ['contention', 'Contention', contentionView],
  ['strategies', 'Strategies', strategiesView],
  ['history', 'History', historyView],
];
// Cards above every view: from a list in the answer of `runs` to its elements.
const CARDS = {
  families: (all) => all.map(familiesCard),
  pipelines: (all) => all.map(pipelineCard),
  bursts: (all) => all.map(burstCard),
  backgrounds: backgroundCards,
};
const RELOAD_SECONDS = 5; // TensorBoard's own interval
const TIMEOUT_SECONDS = 120; // of the request for the list of runs
const HOLD_SECONDS = 15; // no redrawing after a list was opened or text was selected
const MAX_CACHED_ANSWERS = 300;
const SCROLL = 'libra scroll';

const SCRIPT = `import horovod.tensorflow as hvd
import tf_libra

hvd.init()

@tf_libra.optimize("libra", logdir="runs/first")
@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss`;

/** One drawing of a view, with its requests and listeners. */
class Drawing {
  constructor() {
    this.drawn = false;
    this.failed = false;
    this.over = new Promise((resolve) => { this.end = resolve; }); // settled when drawn or left
    this.leaving = [];
    this.restyling = [];
    this.selecting = [];
    this.requests = new AbortController();
  }

  /** Ends the drawing; open requests are aborted, as a browser limits them per server. */
  leave() {
    this.requests.abort();
    for (const action of this.leaving.splice(0)) action();
    this.end();
  }
}

/** State and elements of the page. */
class Page {
  constructor() {
    const place = readPlace();
    this.view = VIEWS.some(([name]) => name === place.view) ? place.view : 'plan';
    this.group = /^\d+$/.test(place.group ?? '') ? Number(place.group) : null;
    this.wanted = place; // names the plan to show until it is found
    this.memory = {}; // state of each view over redrawings: order, filter, zoom
    this.cache = new Map(); // answers that never change
    this.runs = {plans: [], measuring: [], strategies: [], stamps: {}, problems: []};
    this.runs.digest = digest(this.runs);
    this.heading = null;
    this.drawing = new Drawing();
    this.shown = this.drawing; // the previous drawing while a view is redrawn in place
    this.reading = null; // aborts the request for the list of runs
    this.held = 0; // no redrawing before this time
    this.top = h('div', {class: 'top'});
    this.nav = h('nav', {role: 'tablist', hidden: true}, VIEWS.map(([name, title]) => h('button', {
      type: 'button', role: 'tab', id: `tab-${name}`,
      onclick: () => { this.view = name; this.show(); },
    }, title)));
    this.bar = h('header', {class: 'bar'}, this.top, this.nav);
    this.main = h('main', {});
    this.clock = h('span', {class: 'updated'});
  }

  async start() {
    document.title = 'Libra';
    const styled = stylesheet('style.css');
    followTheme(() => { for (const drawing of this.drawings()) for (const restyle of drawing.restyling) restyle(); });
    await styled;
    document.body.append(this.bar, this.main);
    const hold = () => { this.held = performance.now() + 1e3 * HOLD_SECONDS; };
    for (const name of ['pointerdown', 'keydown']) {
      document.addEventListener(name, (event) => { if (event.target.closest?.('select')) hold(); }, true);
    }
    document.addEventListener('selectionchange', () => { if (!window.getSelection()?.isCollapsed) hold(); });
    document.addEventListener('change', () => { this.held = 0; }, true);
    await this.reload();
    this.scrollBack();
    onTensorBoardReload(() => this.follow());
    onReturn((plan, group) => this.goTo(plan, group));
    // The next check begins after the last one has ended, so slow answers never pile up.
    const check = async () => {
      if (!document.hidden && window.innerWidth > 0) await this.follow();
      setTimeout(check, RELOAD_SECONDS * 1000);
    };
    setTimeout(check, RELOAD_SECONDS * 1000);
    window.addEventListener('pagehide', () => remember(window.scrollY));
  }

  scrollBack() {
    const scroll = remembered();
    if (scroll > 0) window.scrollTo(0, scroll);
  }

  /** Reads the list of runs and redraws everything. */
  async reload() {
    if (await this.read()) await this.show();
  }

  /**
   * Reads the list of runs, and redraws in place if it has changed.
   *
   * Does nothing during a drawing or while the user holds an open list, selected text or a timeline:
   * the next check follows soon.
   */
  async follow() {
    if (this.reading !== null || this.isHeld()) return;
    const before = this.runs;
    const failed = this.main.dataset.ready === 'failed';
    if (!await this.read(() => !this.isHeld())) return;
    if (failed || !this.sameAs(before)) await this.show(true);
    else this.showTime();
  }

  isHeld() {
    return !this.drawing.drawn || performance.now() < this.held || document.querySelector('.dragging') !== null;
  }

  /** Reads the list of runs; false if a later read has replaced this one, or it is not `wanted`. */
  async read(wanted = null) {
    const reading = new AbortController();
    this.reading?.abort();
    this.reading = reading;
    const late = setTimeout(() => reading.abort(), 1e3 * TIMEOUT_SECONDS);
    let runs;
    try {
      runs = await get('runs', {}, reading.signal);
    } catch (error) {
      if (this.reading === reading && (wanted === null || this.heading === null)) {
        this.drawing.leave();
        this.main.replaceChildren(message('No answer from TensorBoard', error.message));
        this.main.dataset.ready = 'failed';
        this.drawing.drawn = true;
      }
      return false;
    } finally {
      clearTimeout(late);
      if (this.reading === reading) this.reading = null;
      else runs = undefined;
    }
    if (runs === undefined || !(wanted?.() ?? true)) return false;
    // Equal plans stay the same objects, which the selectors hold.
    runs.digest = digest(runs);
    if (runs.digest.plans === this.runs.digest.plans) runs.plans = this.runs.plans;
    const siblings = this.heading === null ? [] : this.siblings();
    const follows = this.heading !== null && siblings.at(-1) === this.heading && !this.picked;
    this.updated = new Date();
    this.runs = runs;
    this.heading = this.choose(follows);
    return true;
  }

  /** True if nothing on the page has changed. */
  sameAs(before) {
    const same = before.digest.plans === this.runs.digest.plans && before.digest.others === this.runs.digest.others;
    if (!same || this.heading === null) return same;
    return before.stamps?.[this.heading.run] === this.runs.stamps?.[this.heading.run];
  }

  /** The plan to show: the present one, or the one in the address; else the last. */
  choose(follows) {
    const {plans} = this.runs;
    const wanted = this.heading ?? (this.wanted.run === undefined ? null : this.wanted);
    if (wanted === null) return plans.at(-1) ?? null;
    const siblings = plans.filter((plan) => plan.run === wanted.run && plan.function === wanted.function);
    if (follows) return siblings.at(-1) ?? plans.at(-1) ?? null;
    const same = siblings.filter((plan) => plan.tag === wanted.tag && String(plan.step) === String(wanted.step));
    return same.at(-1) ?? siblings.filter((plan) => plan.tag === wanted.tag).at(-1) ?? siblings.at(-1) ?? plans.at(-1) ?? null;
  }

  /** Shows a plan by a prefix of its fingerprint, and selects one of its groups. */
  goTo(id, group) {
    const known = [this.heading, ...this.siblings().reverse(), ...this.runs.plans.toReversed()];
    const plan = known.find((one) => one.fingerprint.startsWith(id));
    if (plan === undefined) return;
    if (plan === this.heading) {
      this.select(group);
      return;
    }
    this.heading = plan;
    this.picked = true;
    this.group = group;
    this.show();
  }

  /** Selects a group in every view; null selects none. */
  select(group) {
    if (group === this.group) return;
    this.group = group;
    this.writePlace();
    for (const drawing of this.drawings()) for (const selected of drawing.selecting) selected(group);
  }

  /** The drawing on the page, and the one in progress. */
  drawings() {
    return new Set([this.shown, this.drawing]);
  }

  writePlace() {
    const {run, function: name, tag, step} = this.heading ?? {};
    writePlace({view: this.view, run, function: name, tag, step, group: this.group});
  }

  /**
   * Redraws everything; `inPlace` keeps the old drawing until the new one is complete.
   *
   * Resolves when the view is on the page; it may still add slow parts.
   */
  show(inPlace = false) {
    const left = this.drawing;
    const drawing = new Drawing();
    this.drawing = drawing;
    this.drawBar();
    const problems = this.runs.problems.map(({file, run, tag, message: reason}) => (file === undefined
      ? message('Unreadable summary', reason, `run ${short(run, 80)}, tag ${short(tag, 80)}`)
      : message('Unreadable event file', reason, file)));
    const cards = Object.entries(CARDS).flatMap(([name, draw]) => draw(this.runs[name] ?? []));
    const measuring = [...this.runs.measuring.map(progress), ...cards];
    if (this.heading === null) {
      left.leave();
      this.shown = drawing;
      this.main.replaceChildren(...problems, ...(measuring.length > 0 ? measuring : [empty(this.runs.strategies)]));
      this.main.dataset.ready = cards.length > 0 ? 'staged' : measuring.length > 0 ? 'measuring' : 'empty';
      drawing.drawn = true;
      return null;
    }
    if (this.group !== null && this.group >= this.heading.num_groups) this.group = null;
    this.writePlace();
    const {view, heading, group} = this;
    const place = h('div', {id: 'view', 'data-view': view});
    const old = inPlace ? document.getElementById('view') : null;
    if (old === null) {
      left.leave();
      this.shown = drawing;
      delete this.main.dataset.ready;
      place.append(h('p', {class: 'busy'}, 'Reading …'));
      this.main.replaceChildren(...problems, ...measuring, place);
    } else {
      drawing.leaving.push(() => left.leave()); // if this drawing is left before it is complete
      old.removeAttribute('id');
      place.classList.add('coming');
      this.main.append(place);
    }
    const arrive = (ready) => {
      if (place.classList.contains('coming')) {
        left.leave();
        const restore = keepPosition(old);
        place.classList.remove('coming');
        this.main.replaceChildren(...problems, ...measuring, place);
        restore(place);
        this.shown = drawing;
        if (this.group !== group) for (const selected of drawing.selecting) selected(this.group);
      }
      this.main.dataset.ready = ready;
      drawing.drawn = true;
      drawing.end();
    };
    const fail = (error) => {
      if (drawing !== this.drawing) return;
      drawing.failed = true;
      place.replaceChildren(message('This view cannot be shown', error.message));
      arrive('failed');
    };
    const ask = (route, parameters) => get(route, {...parameters}, drawing.requests.signal);
    const context = {
      plan: {run: heading.run, tag: heading.tag},
      heading,
      siblings: this.siblings(),
      group,
      memory: (this.memory[view] ??= {}),
      ask,
      askOnce: (route, parameters) => this.cached(ask, heading, route, parameters),
      select: (group) => this.select(group),
      fail,
      left: () => drawing !== this.drawing,
      ready: () => { if (drawing === this.drawing && !drawing.failed) arrive(view); },
      onleave: (action) => drawing.leaving.push(action),
      onrestyle: (action) => drawing.restyling.push(action),
      onselect: (action) => drawing.selecting.push(action),
    };
    VIEWS.find(([name]) => name === view)[2](place, context).catch(fail);
    return drawing.over;
  }

  /** Returns an answer that depends on the plan alone from the cache. */
  async cached(ask, {run, tag, step, fingerprint}, route, parameters) {
    const key = JSON.stringify([run, tag, step, fingerprint, route, parameters]);
    if (!this.cache.has(key)) {
      const answer = await ask(route, parameters);
      if (this.cache.size >= MAX_CACHED_ANSWERS) this.cache.delete(this.cache.keys().next().value);
      this.cache.set(key, answer);
    }
    return this.cache.get(key);
  }

  /** Plans of the same function in the same run, in order. */
  siblings() {
    const {run, function: name} = this.heading;
    return this.runs.plans.filter((plan) => plan.run === run && plan.function === name);
  }

  showTime() {
    this.clock.textContent = `read at ${this.updated.toLocaleTimeString('en-GB')}`;
  }

  drawBar() {
    this.showTime();
    // Unchanged selectors keep their elements, which the user may be about to click.
    if (this.drawn?.heading !== this.heading || this.drawn.plans !== this.runs.plans) {
      this.drawn = {heading: this.heading, plans: this.runs.plans};
      const focused = this.top.contains(document.activeElement) ? document.activeElement.id : '';
      this.top.replaceChildren(
        ...(this.heading === null ? [] : this.selectors()),
        h('span', {class: 'spacer'}),
        this.clock,
        h('button', {type: 'button', id: 'reload', onclick: () => this.reload()}, 'Reload'));
      if (focused) document.getElementById(focused)?.focus();
    }
    this.nav.hidden = this.heading === null;
    for (const tab of this.nav.children) tab.setAttribute('aria-selected', String(tab.id === `tab-${this.view}`));
  }

  selectors() {
    const {plans} = this.runs;
    const key = (plan) => JSON.stringify([plan.run, plan.function]);
    const jobs = new Map(plans.map((plan) => [key(plan), plan]));
    const several = new Set(plans.map((plan) => plan.function)).size > 1;
    const title = (plan) => (several ? `${short(plan.run, 40)} · ${short(plan.function, 30)}` : short(plan.run, 60));
    const siblings = this.siblings();
    return [
      choice('Run', [...jobs].map(([one, plan]) => [one, title(plan)]), key(this.heading), (chosen) => {
        this.heading = jobs.get(chosen);
        this.picked = false;
        this.show();
      }, {id: 'run', title: `${this.heading.run}, ${this.heading.function}`}),
      choice('Plan', siblings.map((plan, i) => [String(i), `from step ${plan.step}: ${strategy(plan.strategy)}, ${plural(plan.num_groups, 'group')} of ${plural(plan.num_tensors, 'tensor')}, ${origin(plan.origin)}`]),
        String(siblings.indexOf(this.heading)), (chosen) => {
          this.heading = siblings[Number(chosen)];
          this.picked = true;
          this.show();
        }, {id: 'version'}),
      h('span', {class: 'updated'}, `${this.heading.num_workers} workers`),
    ];
  }
}

/** Returns a function that gives the scroll positions and the focus of a view to its successor. */
function keepPosition(old) {
  const {scrollX, scrollY} = window;
  const scrolled = [...old.querySelectorAll('.scroll, .long-list')].map(({scrollTop, scrollLeft}) => [scrollTop, scrollLeft]);
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const cursor = focused?.matches('input') ? [focused.selectionStart, focused.selectionEnd] : null;
  return (place) => {
    for (const [i, list] of place.querySelectorAll('.scroll, .long-list').entries()) {
      if (scrolled[i] !== undefined) [list.scrollTop, list.scrollLeft] = scrolled[i];
    }
    const again = focused?.id ? document.getElementById(focused.id) : null;
    again?.focus({preventScroll: true});
    if (cursor !== null) again?.setSelectionRange(...cursor);
    window.scrollTo(scrollX, scrollY);
  };
}

// A page without an origin, such as an attachment of a mail, has no storage.
function remember(scroll) {
  try {
    sessionStorage.setItem(SCROLL, String(scroll));
  } catch {
    // The page begins at its top.
  }
}

function remembered() {
  try {
    return Number(sessionStorage.getItem(SCROLL) ?? 0);
  } catch {
    return 0;
  }
}

/** Texts of a list of runs, to compare it with the next one. */
function digest({plans, measuring, problems, ...others}) {
  const cards = Object.keys(CARDS).map((name) => others[name]);
  return {plans: JSON.stringify(plans), others: JSON.stringify([cards, measuring, problems])};
}

/** Card of a function without a plan. */
function progress({run, function: name, step, most}) {
  return h('section', {class: 'card measuring', 'data-function': name},
    h('h2', {class: 'name'}, `${short(name, 60)}: measuring, step ${step} of ${most}`),
    h('p', {class: 'lead'}, 'These steps train, and measure trial plans. A plan becomes active at the latest after the last of these steps; this page then shows it.'),
    h('progress', {max: most, value: Math.min(step, most), title: short(run, 80)}));
}

function message(title, ...lines) {
  return h('section', {class: 'card message', role: 'alert'}, h('h2', {}, title), lines.map((line) => h('p', {class: 'name'}, line)));
}

/** Default tuning budget of most strategies, and in parentheses those of the others. */
function budgets(strategies) {
  const counts = new Map();
  const limits = strategies.map((one) => [one.name, `${one.tuning_steps}`, `${one.tuning_seconds}`]);
  for (const [, ...limit] of limits) counts.set(limit.join(), (counts.get(limit.join()) ?? 0) + 1);
  const most = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
  const others = limits.filter(([, ...limit]) => limit.join() !== most).map(([name, steps, seconds]) => `${name} ${steps} or ${seconds}`);
  const [steps, seconds] = most.split(',');
  return `${steps} steps or ${seconds} seconds${others.length > 0 ? ` (${others.join(', ')})` : ''}`;
}

function empty(strategies) {
  return h('section', {class: 'card empty', id: 'empty'},
    h('h2', {}, 'No plan in this log directory'),
    h('p', {class: 'lead'}, 'This tab shows how a data-parallel training step overlaps communication with computation: its tensor groups and communication threads, the reasons for them, and measurements.'),
    h('h3', {}, 'Name a log directory in the script'),
    h('pre', {}, SCRIPT),
    h('h3', {}, 'Train on two workers or more'),
    h('pre', {}, 'tf-libra run -np 2 python train.py'),
    h('h3', {}, 'Start TensorBoard'),
    h('pre', {}, 'tensorboard --logdir runs'),
    h('p', {class: 'note'}, `A plan becomes active after the first steps, which measure; by default at most ${budgets(strategies)}.`));
}

/** Entry point for TensorBoard. */
export function render() {
  return new Page().start();
}
