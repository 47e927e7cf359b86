// Links between groups and their all-reduces in TensorBoard's Graphs tab, in both directions.
// The elements of that tab are no public interface. If they differ from the known ones, the tab
// still opens on the right run, and the user can search for the name.

import {holder, parts} from './url_state.js';

const TIMEOUT_SECONDS = 60;
const POLL_MILLISECONDS = 100;
const NODE = /(?:^|\/)tf_libra\/([^/]+)\/group_(\d+)(?:_\w+)?$/;

/** True inside of TensorBoard, false in a report. */
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
  const until = performance.now() + 1e3 * TIMEOUT_SECONDS;
  while (performance.now() < until) {
    await new Promise((resolve) => { setTimeout(resolve, POLL_MILLISECONDS); });
    if (parts()[0] !== 'graphs') return;
    try {
      const search = dashboard()?.shadowRoot?.querySelector('tf-graph-controls')?.shadowRoot?.querySelector('tf-graph-node-search');
      const names = Object.keys(search?.renderHierarchy?.hierarchy?.getNodeMap?.() ?? {});
      // Inside of a function of the graph, names begin with the function's name.
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

/** Calls back with plan and group of the selected node when the user returns from the Graphs tab. */
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
