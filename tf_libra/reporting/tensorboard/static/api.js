// Requests to the plugin's backend.

const BASE = new URL('../', import.meta.url);

/** Returns the answer of a route; throws an Error with the backend's reason, or if `signal` aborts. */
export async function get(route, parameters = {}, signal = undefined) {
  const url = new URL(route, BASE);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  const response = await fetch(url, {signal});
  if (response.ok) return response.json();
  let reason = `${response.status} ${response.statusText}`;
  try {
    reason = (await response.json()).error ?? reason;
  } catch {
    // The answer is TensorBoard's own, without JSON.
  }
  throw new Error(reason);
}

/** Loads a classic script that the plugin serves. */
export function script(name) {
  return new Promise((resolve, reject) => {
    const element = document.createElement('script');
    element.src = new URL(name, import.meta.url).href;
    element.onload = resolve;
    element.onerror = () => reject(new Error(`${name} could not be loaded`));
    document.head.append(element);
  });
}

/** Loads a style sheet that the plugin serves; resolves also on failure. */
export function stylesheet(name) {
  return new Promise((resolve) => {
    const element = document.createElement('link');
    element.rel = 'stylesheet';
    element.href = new URL(name, import.meta.url).href;
    element.onload = resolve;
    element.onerror = resolve;
    document.head.append(element);
  });
}
