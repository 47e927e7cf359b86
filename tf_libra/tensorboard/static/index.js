// The Libra tab: which run, which plan, which view.

import {get, stylesheet} from './api.js';
import {contentionView} from './contention.js';
import {choice, h} from './dom.js';
import {short, strategy} from './format.js';
import {historyView} from './history.js';
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
const RELOAD_SECONDS = 30; // as TensorBoard's own

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
    this.view = 'plan';
    this.runs = {plans: [], problems: []};
    this.heading = null;
    this.visit = 0;
    this.leaving = [];
    this.restyling = [];
    this.bar = h('header', {class: 'bar'});
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
    setInterval(() => { if (!document.hidden) this.reload(true); }, RELOAD_SECONDS * 1000);
  }

  /** Reads the list of runs again; `quietly` redraws only if there is something new in it. */
  async reload(quietly = false) {
    let runs;
    try {
      runs = await get('runs');
    } catch (error) {
      if (!quietly) this.main.replaceChildren(message('TensorBoard could not be asked', error.message));
      return;
    }
    this.updated = new Date();
    const same = JSON.stringify(runs) === JSON.stringify(this.runs);
    this.runs = runs;
    if (quietly && same) {
      this.tellTime();
      return;
    }
    const before = this.heading;
    const again = runs.plans.filter((plan) => before && plan.run === before.run && plan.tag === before.tag);
    this.heading = again.at(-1) ?? runs.plans.at(-1) ?? null;
    await this.show();
  }

  /** Redraws everything. */
  async show() {
    this.visit += 1;
    const visit = this.visit;
    for (const leave of this.leaving) leave();
    this.leaving = [];
    this.restyling = [];
    this.drawBar();
    const problems = this.runs.problems.map(({run, tag, message: reason}) =>
      message('A summary of this plugin cannot be read', reason, `run ${short(run, 80)}, tag ${short(tag, 80)}`));
    if (this.heading === null) {
      this.main.replaceChildren(...problems, empty());
      this.main.dataset.ready = 'empty';
      return;
    }
    const place = h('div', {id: 'view', 'data-view': this.view});
    delete this.main.dataset.ready;
    place.append(h('p', {class: 'busy'}, 'Reading …'));
    this.main.replaceChildren(...problems, place);
    const fail = (error) => {
      if (visit !== this.visit) return;
      place.replaceChildren(message('This cannot be shown', error.message));
      this.main.dataset.ready = 'failed';
    };
    const context = {
      plan: {run: this.heading.run, tag: this.heading.tag},
      heading: this.heading,
      siblings: this.siblings(),
      fail,
      left: () => visit !== this.visit,
      ready: () => { if (visit === this.visit) this.main.dataset.ready = this.view; },
      onleave: (action) => this.leaving.push(action),
      onrestyle: (action) => this.restyling.push(action),
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
    if (this.heading !== null) {
      children.push(h('nav', {role: 'tablist'}, VIEWS.map(([name, title]) => h('button', {
        type: 'button', role: 'tab', id: `tab-${name}`, 'aria-selected': String(name === this.view),
        onclick: () => { this.view = name; this.show(); },
      }, title))));
    }
    this.bar.replaceChildren(...children);
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
        this.show();
      }, {id: 'run', title: `${this.heading.run}, ${this.heading.function}`}),
      choice('Plan', siblings.map((plan, i) => [String(i), `from step ${plan.step}: ${strategy(plan.strategy)}, ${plan.num_groups} of ${plan.num_tensors}, ${plan.origin}`]),
        String(siblings.indexOf(this.heading)), (chosen) => {
          this.heading = siblings[Number(chosen)];
          this.show();
        }, {id: 'version'}),
      h('span', {class: 'updated'}, `${this.heading.num_workers} workers`),
    ];
  }
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
    h('p', {class: 'note'}, 'A plan comes into force after the first steps, which measure; by default at most 100 steps or 60 seconds.'));
}

/** What TensorBoard calls. */
export function render() {
  return new Page().start();
}
