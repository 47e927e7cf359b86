// Replaces the tab's api.js in a report: returns the answers that the report contains.

const answers = new Map(
  JSON.parse(document.getElementById('answers').textContent)
    .map(([route, parameters, answer]) => [key(route, parameters), answer]));

function key(route, parameters) {
  const pairs = Object.entries(parameters).map(([name, value]) => [name, String(value)]);
  pairs.sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([route, pairs]);
}

/** Returns the answer of a route; throws an Error with the backend's reason. */
export async function get(route, parameters = {}) {
  if (route === 'strategies' && parameters.strategy !== undefined) {
    const {strategy, ...others} = parameters;
    const all = await get(route, others); // a report has all rows in one answer
    return {...all, rows: all.rows.filter((row) => row.strategy === strategy)};
  }
  const found = answers.get(key(route, parameters));
  if (found === undefined) throw new Error('Not part of the report; only TensorBoard shows it.');
  if (found.error !== undefined) throw new Error(found.error);
  return found.value;
}

/** Scripts and style sheets are part of the page. */
export async function script() {}
export async function stylesheet() {}
