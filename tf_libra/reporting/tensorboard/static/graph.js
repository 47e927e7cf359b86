// TensorBoard's Graphs tab: a group's all-reduce is shown there, and one that is selected there is
// its group here. The elements of that tab are no interface: where they are others than known, it
// opens on the right run, and the name can be searched for.

import {holder, parts} from './url_state.js';

const PATIENCE_SECONDS = 60;
const LOOK_MILLISECONDS = 100;
const NODE = /(?:^|\/)tf_libra\/([^/]+)\/group_(\d+)(?:_\w+)?$/;

/** Whether there is a TensorBoard around this page. */
export function hasGraphs() {
  return window.parent !== window && holder() === window.parent;
}

function dashboard() {
  return holder().document.querySelector('tf-graph-dashboard');
}

/** Opens the Graphs tab at a node of a run. */
export async function showInGraphs(run, node) {
  const kept = parts().filter((part) => part.includes('=') && !part.startsWith('run='));
  holder().location.hash = ['graphs', ...kept, `run=${encodeURIComponent(run)}`].join('&');
  const until = performance.now() + 1e3 * PATIENCE_SECONDS;
  while (performance.now() < until) {
    await new Promise((resolve) => { setTimeout(resolve, LOOK_MILLISECONDS); });
    if (parts()[0] !== 'graphs') return;
    try {
      const search = dashboard()?.shadowRoot?.querySelector('tf-graph-controls')?.shadowRoot?.querySelector('tf-graph-node-search');
      const names = Object.keys(search?.renderHierarchy?.hierarchy?.getNodeMap?.() ?? {});
      // In a function of the graph, names begin with the function's.
      const found = names.find((name) => name === node) ?? names.find((name) => name.endsWith(`/${node}`));
      if (found === undefined || dashboard().run !== run) continue;
      search.set('_rawRegexInput', `${node}$`);
      search.set('selectedNode', found);
    } catch {
      // Another version of TensorBoard.
    }
    return;
  }
}

/** Calls back with plan and group of the node that is selected when somebody comes back from there. */
export function onReturn(callback) {
  if (!hasGraphs()) return;
  let before = parts()[0];
  window.parent.addEventListener('hashchange', () => {
    const now = parts()[0];
    const returns = before === 'graphs' && now === 'libra';
    before = now;
    if (!returns) return;
    const [, plan, group] = NODE.exec(dashboard()?._selectedNode ?? '') ?? [];
    if (plan !== undefined) callback(plan, Number(group));
  });
}
