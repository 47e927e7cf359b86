// Stands in for the tab's api.js: answers what the backend said when the report was made.

const answers = new Map(
  JSON.parse(document.getElementById('answers').textContent)
    .map(([route, parameters, answer]) => [key(route, parameters), answer]));

function key(route, parameters) {
  const pairs = Object.entries(parameters).map(([name, value]) => [name, String(value)]);
  pairs.sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([route, pairs]);
}

/** What a route answered; an Error with the backend's reason where it refused. */
export async function get(route, parameters = {}) {
  if (route === 'strategies' && parameters.strategy !== undefined) {
    const {strategy, ...others} = parameters;
    const all = await get(route, others); // one by one is for those who wait
    return {...all, rows: all.rows.filter((row) => row.strategy === strategy)};
  }
  const found = answers.get(key(route, parameters));
  if (found === undefined) throw new Error('This is not in the report; TensorBoard shows it.');
  if (found.error !== undefined) throw new Error(found.error);
  return found.value;
}

/** Scripts and style sheets are in the page. */
export async function script() {}
export async function stylesheet() {}
