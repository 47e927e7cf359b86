// The Libra tab: which run, which plan, which view.

import {get, stylesheet} from './api.js';
import {contentionView} from './contention.js';
import {choice, h} from './dom.js';
import {short, strategy} from './format.js';
import {historyView} from './history.js';
import {pipelineCard} from './pipeline.js';
import {onTensorBoardReload, readPlace, writePlace} from './place.js';
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
const RELOAD_SECONDS = 5; // as often as TensorBoard itself looks for what was written
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

/** Everything on the page, and what is selected. */
class Page {
  constructor() {
    const place = readPlace();
    this.view = VIEWS.some(([name]) => name === place.view) ? place.view : 'plan';
    this.group = /^\d+$/.test(place.group ?? '') ? Number(place.group) : null;
    this.wanted = place; // until the plan that it names is found
    this.memory = {}; // what the views keep over a redrawing: order, filter, zoom
    this.runs = {plans: [], pipelines: [], measuring: [], stamps: {}, problems: []};
    this.heading = null;
    this.visit = 0;
    this.leaving = [];
    this.restyling = [];
    this.selecting = [];
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
    followTheme(() => { for (const restyle of this.restyling) restyle(); });
    await styled;
    document.body.append(this.bar, this.main);
    await this.reload();
    this.scrollBack();
    onTensorBoardReload(() => this.reload(true));
    setInterval(() => { if (!document.hidden) this.reload(true); }, RELOAD_SECONDS * 1000);
    window.addEventListener('pagehide', () => remember(window.scrollY));
  }

  scrollBack() {
    const kept = remembered();
    if (kept > 0) window.scrollTo(0, kept);
  }

  /** Reads the list of runs again; `quietly` redraws only what has changed, in its place. */
  async reload(quietly = false) {
    let runs;
    try {
      runs = await get('runs');
    } catch (error) {
      if (!quietly) this.main.replaceChildren(message('TensorBoard could not be asked', error.message));
      return;
    }
    this.updated = new Date();
    const before = this.runs;
    this.runs = runs;
    if (quietly && this.sameAs(before)) {
      this.tellTime();
      return;
    }
    const siblings = before.plans.filter((plan) => this.heading && plan.run === this.heading.run && plan.function === this.heading.function);
    const follows = this.heading !== null && siblings.at(-1) === this.heading && !this.picked;
    this.heading = this.choose(follows);
    await this.show(quietly && this.main.dataset.ready === this.view);
  }

  /** Whether nothing that is shown has changed. */
  sameAs(before) {
    const list = ({plans, pipelines, measuring, problems}) => JSON.stringify([plans, pipelines, measuring, problems]);
    if (list(before) !== list(this.runs) || this.heading === null) return list(before) === list(this.runs);
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

  /** Selects a group in every view; null for none. */
  select(group) {
    if (group === this.group) return;
    this.group = group;
    this.writePlace();
    for (const selected of this.selecting) selected(group);
  }

  writePlace() {
    const {run, function: name, tag, step} = this.heading ?? {};
    writePlace({view: this.view, run, function: name, tag, step, group: this.group});
  }

  /** Redraws everything; `inPlace`: what is shown stays until what follows it is drawn. */
  async show(inPlace = false) {
    this.visit += 1;
    const visit = this.visit;
    const leaving = this.leaving;
    this.leaving = [];
    this.restyling = [];
    this.selecting = [];
    this.drawBar();
    const problems = this.runs.problems.map(({run, tag, message: reason}) =>
      message('A summary of this plugin cannot be read', reason, `run ${short(run, 80)}, tag ${short(tag, 80)}`));
    const measuring = [...this.runs.measuring.map(progress), ...this.runs.pipelines.map(pipelineCard)];
    if (this.heading === null) {
      for (const leave of leaving) leave();
      this.main.replaceChildren(...problems, ...(measuring.length > 0 ? measuring : [empty()]));
      this.main.dataset.ready = this.runs.pipelines.length > 0 ? 'pipeline' : measuring.length > 0 ? 'measuring' : 'empty';
      return;
    }
    if (this.group !== null && this.group >= this.heading.num_groups) this.group = null;
    this.writePlace();
    const place = h('div', {id: 'view', 'data-view': this.view});
    const old = inPlace ? document.getElementById('view') : null;
    if (old === null) {
      for (const leave of leaving) leave();
      delete this.main.dataset.ready;
      place.append(h('p', {class: 'busy'}, 'Reading …'));
      this.main.replaceChildren(...problems, ...measuring, place);
    } else {
      old.removeAttribute('id');
      place.classList.add('coming');
      this.main.append(place);
    }
    const arrive = () => {
      if (visit !== this.visit || old === null || !place.classList.contains('coming')) return;
      for (const leave of leaving) leave();
      const {scrollX, scrollY} = window;
      place.classList.remove('coming');
      this.main.replaceChildren(...problems, ...measuring, place);
      window.scrollTo(scrollX, scrollY);
    };
    const fail = (error) => {
      if (visit !== this.visit) return;
      place.replaceChildren(message('This cannot be shown', error.message));
      arrive();
      this.main.dataset.ready = 'failed';
    };
    const context = {
      plan: {run: this.heading.run, tag: this.heading.tag},
      heading: this.heading,
      siblings: this.siblings(),
      group: this.group,
      memory: (this.memory[this.view] ??= {}),
      select: (group) => this.select(group),
      fail,
      left: () => visit !== this.visit,
      ready: () => { if (visit === this.visit) { arrive(); this.main.dataset.ready = this.view; } },
      onleave: (action) => this.leaving.push(action),
      onrestyle: (action) => this.restyling.push(action),
      onselect: (action) => this.selecting.push(action),
    };
    try {
      await VIEWS.find(([name]) => name === this.view)[2](place, context);
    } catch (error) {
      fail(error);
    }
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
    const children = [];
    if (this.heading !== null) children.push(...this.selectors());
    children.push(
      h('span', {class: 'spacer'}),
      this.clock,
      h('button', {type: 'button', id: 'reload', onclick: () => this.reload()}, 'Reload'));
    const focused = this.top.contains(document.activeElement) ? document.activeElement.id : '';
    this.top.replaceChildren(...children);
    if (focused) document.getElementById(focused)?.focus();
    // The same elements again: a click that is under way is not lost.
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

function empty() {
  return h('section', {class: 'card empty', id: 'empty'},
    h('h2', {}, 'No plan was found in this log directory'),
    h('p', {class: 'lead'}, 'This tab shows how a data-parallel training step overlaps communication with computation: its tensor groups and communication threads, why they were chosen, and what was measured.'),
    h('h3', {}, 'Name a log directory in the script'),
    h('pre', {}, SCRIPT),
    h('h3', {}, 'Train on two workers or more'),
    h('pre', {}, 'tf-libra run -np 2 python train.py'),
    h('h3', {}, 'Look here'),
    h('pre', {}, 'tensorboard --logdir runs'),
    h('p', {class: 'note'}, 'A plan comes into force after the first steps, which measure; by default at most 60 steps or 60 seconds.'));
}

/** What TensorBoard calls. */
export function render() {
  return new Page().start();
}
