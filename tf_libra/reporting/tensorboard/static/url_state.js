// State of the page in its address, so that it survives a reload and can be shared.
// TensorBoard leaves entries that begin with `p.libra.` to this plugin.

const PREFIX = 'p.libra.';

/** The window with the address. */
export function holder() {
  try {
    void window.parent.location.hash;
    return window.parent;
  } catch {
    return window; // embedded by a page of another origin
  }
}

/** Parts of the address; the first is the name of TensorBoard's tab. */
export function parts() {
  return holder().location.hash.slice(1).split('&').filter((part) => part !== '');
}

/** State in the address, by name. */
export function readPlace() {
  const found = {};
  for (const part of parts()) {
    const [name, value] = part.split('=');
    if (!name.startsWith(PREFIX) || value === undefined) continue;
    try {
      found[name.slice(PREFIX.length)] = decodeURIComponent(value);
    } catch {
      // Malformed text in the address is ignored.
    }
  }
  return found;
}

/** Writes the state, without a new entry in the browser's history. */
export function writePlace(values) {
  const window_ = holder();
  const kept = parts().filter((part) => !part.startsWith(PREFIX));
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== '') kept.push(`${PREFIX}${name}=${encodeURIComponent(value)}`);
  }
  try {
    window_.history.replaceState(window_.history.state, '', `#${kept.join('&')}`);
  } catch {
    // The page has no address of its own.
  }
}

/** Calls back after TensorBoard has reloaded its data, by its button or timer. */
export function onTensorBoardReload(callback) {
  if (window.parent === window) return;
  const channel = new MessageChannel();
  channel.port1.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.isReply) return;
    if (message.type === 'experimental.DataReloaded') callback();
    channel.port1.postMessage(JSON.stringify({...message, payload: null, error: null, isReply: true}));
  };
  window.parent.postMessage('experimental.bootstrap', '*', [channel.port2]);
}
