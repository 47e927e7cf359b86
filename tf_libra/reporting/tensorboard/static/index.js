// The Libra tab: which run, which plan, which view.

import {get, stylesheet} from './api.js';
import {backgroundCards, burstCard} from './burst.js';
import {contentionView} from './contention.js';
import {choice, h} from './dom.js';
import {short, strategy} from './format.js';
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
// What stands in cards whatever view is shown: of each list of `runs`, what is drawn of all in it.
const CARDS = {
  pipelines: (all) => all.map(pipelineCard),
  bursts: (all) => all.map(burstCard),
  backgrounds: backgroundCards,
};
const RELOAD_SECONDS = 5; // as often as TensorBoard itself looks for what was written
const PATIENCE_SECONDS = 120; // for the list of runs
const HELD_SECONDS = 15; // how long a list stays open, or marked text is wanted
const KEPT_ANSWERS = 300;
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

/** One drawing of a view: what it has asked for and set up goes with it. */
class Visit {
  constructor() {
    this.drawn = false;
    this.failed = false;
    this.over = new Promise((resolve) => { this.end = resolve; }); // drawn, or left
    this.leaving = [];
    this.restyling = [];
    this.selecting = [];
    this.asking = new AbortController();
  }

  /** What it still waits for is not waited for: a browser asks a server a few questions at a time. */
  leave() {
    this.asking.abort();
    for (const action of this.leaving.splice(0)) action();
    this.end();
  }
}

/** Everything on the page, and what is selected. */
class Page {
  constructor() {
    const place = readPlace();
    this.view = VIEWS.some(([name]) => name === place.view) ? place.view : 'plan';
    this.group = /^\d+$/.test(place.group ?? '') ? Number(place.group) : null;
    this.wanted = place; // until the plan that it names is found
    this.memory = {}; // what the views keep over a redrawing: order, filter, zoom
    this.kept = new Map(); // answers that never change
    this.runs = {plans: [], measuring: [], strategies: [], stamps: {}, problems: []};
    this.runs.said = said(this.runs);
    this.heading = null;
    this.visit = new Visit();
    this.shown = this.visit; // another one while a view is redrawn in its place
    this.reading = null; // of the list of runs
    this.held = 0; // until when a list may be open, or marked text be wanted
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
    followTheme(() => { for (const visit of this.visits()) for (const restyle of visit.restyling) restyle(); });
    await styled;
    document.body.append(this.bar, this.main);
    const hold = () => { this.held = performance.now() + 1e3 * HELD_SECONDS; };
    for (const name of ['pointerdown', 'keydown']) {
      document.addEventListener(name, (event) => { if (event.target.closest?.('select')) hold(); }, true);
    }
    document.addEventListener('selectionchange', () => { if (!window.getSelection()?.isCollapsed) hold(); });
    document.addEventListener('change', () => { this.held = 0; }, true);
    await this.reload();
    this.scrollBack();
    onTensorBoardReload(() => this.follow());
    onReturn((plan, group) => this.goTo(plan, group));
    // The next look begins when the last one is over: however slow the answers, they never pile up.
    const look = async () => {
      if (!document.hidden && window.innerWidth > 0) await this.follow();
      setTimeout(look, RELOAD_SECONDS * 1000);
    };
    setTimeout(look, RELOAD_SECONDS * 1000);
    window.addEventListener('pagehide', () => remember(window.scrollY));
  }

  scrollBack() {
    const kept = remembered();
    if (kept > 0) window.scrollTo(0, kept);
  }

  /** Reads the list of runs again, and draws everything anew. */
  async reload() {
    if (await this.read()) await this.show();
  }

  /**
   * Reads it, and redraws what has changed in its place. What is being drawn is drawn to its end
   * first, and what somebody holds (an open list, marked text, a timeline) is left alone: the next
   * look is soon.
   */
  async follow() {
    if (this.reading !== null || this.isHeld()) return;
    const before = this.runs;
    const failed = this.main.dataset.ready === 'failed';
    if (!await this.read(() => !this.isHeld())) return;
    if (failed || !this.sameAs(before)) await this.show(true);
    else this.tellTime();
  }

  isHeld() {
    return !this.visit.drawn || performance.now() < this.held || document.querySelector('.dragging') !== null;
  }

  /** Takes over the list of runs as it is now, unless it is read anew meanwhile or not `wanted`. */
  async read(wanted = null) {
    const reading = new AbortController();
    this.reading?.abort();
    this.reading = reading;
    const late = setTimeout(() => reading.abort(), 1e3 * PATIENCE_SECONDS);
    let runs;
    try {
      runs = await get('runs', {}, reading.signal);
    } catch (error) {
      if (this.reading === reading && (wanted === null || this.heading === null)) {
        this.visit.leave();
        this.main.replaceChildren(message('TensorBoard could not be asked', error.message));
        this.main.dataset.ready = 'failed';
        this.visit.drawn = true;
      }
      return false;
    } finally {
      clearTimeout(late);
      if (this.reading === reading) this.reading = null;
      else runs = undefined;
    }
    if (runs === undefined || !(wanted?.() ?? true)) return false;
    // What says the same stays the same: the lists to choose from hold these plans.
    runs.said = said(runs);
    if (runs.said.plans === this.runs.said.plans) runs.plans = this.runs.plans;
    const siblings = this.heading === null ? [] : this.siblings();
    const follows = this.heading !== null && siblings.at(-1) === this.heading && !this.picked;
    this.updated = new Date();
    this.runs = runs;
    this.heading = this.choose(follows);
    return true;
  }

  /** Whether nothing that is shown has changed. */
  sameAs(before) {
    const same = before.said.plans === this.runs.said.plans && before.said.others === this.runs.said.others;
    if (!same || this.heading === null) return same;
    return before.stamps?.[this.heading.run] === this.runs.stamps?.[this.heading.run];
  }

  /** The plan to show: the one that was shown or that the address names; else the last one. */
  choose(follows) {
    const {plans} = this.runs;
    const wanted = this.heading ?? (this.wanted.run === undefined ? null : this.wanted);
    if (wanted === null) return plans.at(-1) ?? null;
    const siblings = plans.filter((plan) => plan.run === wanted.run && plan.function === wanted.function);
    if (follows) return siblings.at(-1) ?? plans.at(-1) ?? null;
    const same = siblings.filter((plan) => plan.tag === wanted.tag && String(plan.step) === String(wanted.step));
    return same.at(-1) ?? siblings.filter((plan) => plan.tag === wanted.tag).at(-1) ?? siblings.at(-1) ?? plans.at(-1) ?? null;
  }

  /** Shows a plan, by the beginning of its fingerprint, and selects one of its groups. */
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

  /** Selects a group in every view; null for none. */
  select(group) {
    if (group === this.group) return;
    this.group = group;
    this.writePlace();
    for (const visit of this.visits()) for (const selected of visit.selecting) selected(group);
  }

  /** What is shown, and what is being drawn to take its place. */
  visits() {
    return new Set([this.shown, this.visit]);
  }

  writePlace() {
    const {run, function: name, tag, step} = this.heading ?? {};
    writePlace({view: this.view, run, function: name, tag, step, group: this.group});
  }

  /**
   * Redraws everything; `inPlace`: what is shown stays until what follows it is drawn. Returns when
   * that is so; a view may go on to add what takes long.
   */
  show(inPlace = false) {
    const left = this.visit;
    const visit = new Visit();
    this.visit = visit;
    this.drawBar();
    const problems = this.runs.problems.map(({file, run, tag, message: reason}) => (file === undefined
      ? message('A summary of this plugin cannot be read', reason, `run ${short(run, 80)}, tag ${short(tag, 80)}`)
      : message('An event file cannot be read', reason, file)));
    const cards = Object.entries(CARDS).flatMap(([name, draw]) => draw(this.runs[name] ?? []));
    const measuring = [...this.runs.measuring.map(progress), ...cards];
    if (this.heading === null) {
      left.leave();
      this.shown = visit;
      this.main.replaceChildren(...problems, ...(measuring.length > 0 ? measuring : [empty(this.runs.strategies)]));
      this.main.dataset.ready = cards.length > 0 ? 'staged' : measuring.length > 0 ? 'measuring' : 'empty';
      visit.drawn = true;
      return null;
    }
    if (this.group !== null && this.group >= this.heading.num_groups) this.group = null;
    this.writePlace();
    const {view, heading, group} = this;
    const place = h('div', {id: 'view', 'data-view': view});
    const old = inPlace ? document.getElementById('view') : null;
    if (old === null) {
      left.leave();
      this.shown = visit;
      delete this.main.dataset.ready;
      place.append(h('p', {class: 'busy'}, 'Reading …'));
      this.main.replaceChildren(...problems, ...measuring, place);
    } else {
      visit.leaving.push(() => left.leave()); // if this one is left before it has come
      old.removeAttribute('id');
      place.classList.add('coming');
      this.main.append(place);
    }
    const arrive = (ready) => {
      if (place.classList.contains('coming')) {
        left.leave();
        const restore = hold(old);
        place.classList.remove('coming');
        this.main.replaceChildren(...problems, ...measuring, place);
        restore(place);
        this.shown = visit;
        if (this.group !== group) for (const selected of visit.selecting) selected(this.group);
      }
      this.main.dataset.ready = ready;
      visit.drawn = true;
      visit.end();
    };
    const fail = (error) => {
      if (visit !== this.visit) return;
      visit.failed = true;
      place.replaceChildren(message('This cannot be shown', error.message));
      arrive('failed');
    };
    const ask = (route, parameters) => get(route, {...parameters}, visit.asking.signal);
    const context = {
      plan: {run: heading.run, tag: heading.tag},
      heading,
      siblings: this.siblings(),
      group,
      memory: (this.memory[view] ??= {}),
      ask,
      askOnce: (route, parameters) => this.once(ask, heading, route, parameters),
      select: (group) => this.select(group),
      fail,
      left: () => visit !== this.visit,
      ready: () => { if (visit === this.visit && !visit.failed) arrive(view); },
      onleave: (action) => visit.leaving.push(action),
      onrestyle: (action) => visit.restyling.push(action),
      onselect: (action) => visit.selecting.push(action),
    };
    VIEWS.find(([name]) => name === view)[2](place, context).catch(fail);
    return visit.over;
  }

  /** An answer that follows from the plan alone: whoever draws it again has it. */
  async once(ask, {run, tag, step, fingerprint}, route, parameters) {
    const key = JSON.stringify([run, tag, step, fingerprint, route, parameters]);
    if (!this.kept.has(key)) {
      const answer = await ask(route, parameters);
      if (this.kept.size >= KEPT_ANSWERS) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, answer);
    }
    return this.kept.get(key);
  }

  /** Plans of the same function in the same run. */
  siblings() {
    const {run, function: name} = this.heading;
    return this.runs.plans.filter((plan) => plan.run === run && plan.function === name);
  }

  tellTime() {
    this.clock.textContent = `read at ${this.updated.toLocaleTimeString('en-GB')}`;
  }

  drawBar() {
    this.tellTime();
    // The same elements again, where they say the same: what somebody is about to click stays.
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
      choice('Plan', siblings.map((plan, i) => [String(i), `from step ${plan.step}: ${strategy(plan.strategy)}, ${plan.num_groups} of ${plan.num_tensors}, ${plan.origin}`]),
        String(siblings.indexOf(this.heading)), (chosen) => {
          this.heading = siblings[Number(chosen)];
          this.picked = true;
          this.show();
        }, {id: 'version'}),
      h('span', {class: 'updated'}, `${this.heading.num_workers} workers`),
    ];
  }
}

/** What somebody has in hand of a view, to be given back to the one that follows it. */
function hold(old) {
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

// A page of no origin, as one that was opened from a mail, has no storage.
function remember(scroll) {
  try {
    sessionStorage.setItem(SCROLL, String(scroll));
  } catch {
    // It begins at its top.
  }
}

function remembered() {
  try {
    return Number(sessionStorage.getItem(SCROLL) ?? 0);
  } catch {
    return 0;
  }
}

/** A list of runs as text, to be compared with the next one. */
function said({plans, measuring, problems, ...others}) {
  const cards = Object.keys(CARDS).map((name) => others[name]);
  return {plans: JSON.stringify(plans), others: JSON.stringify([cards, measuring, problems])};
}

/** A function that has no plan yet. */
function progress({run, function: name, step, most}) {
  return h('section', {class: 'card measuring', 'data-function': name},
    h('h2', {class: 'name'}, `${short(name, 60)}: measuring, step ${step} of ${most}`),
    h('p', {class: 'lead'}, 'Steps train while they measure and try plans out. A plan comes into force when they are done, at the latest after so many steps; this page shows it then.'),
    h('progress', {max: most, value: Math.min(step, most), title: short(run, 80)}));
}

function message(title, ...lines) {
  return h('section', {class: 'card message', role: 'alert'}, h('h2', {}, title), lines.map((line) => h('p', {class: 'name'}, line)));
}

/** How long may be measured where nobody says: by most strategies, and by the others. */
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
    h('h2', {}, 'No plan was found in this log directory'),
    h('p', {class: 'lead'}, 'This tab shows how a data-parallel training step overlaps communication with computation: its tensor groups and communication threads, why they were chosen, and what was measured.'),
    h('h3', {}, 'Name a log directory in the script'),
    h('pre', {}, SCRIPT),
    h('h3', {}, 'Train on two workers or more'),
    h('pre', {}, 'tf-libra run -np 2 python train.py'),
    h('h3', {}, 'Look here'),
    h('pre', {}, 'tensorboard --logdir runs'),
    h('p', {class: 'note'}, `A plan comes into force after the first steps, which measure; by default at most ${budgets(strategies)}.`));
}

/** What TensorBoard calls. */
export function render() {
  return new Page().start();
}
