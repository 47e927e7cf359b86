// What is looked at, in the address of the page: it survives a reload, and can be sent to others.
// TensorBoard leaves what begins with `p.libra.` behind the name of its tab to this plugin.

const PREFIX = 'p.libra.';

/** The window whose address it is. */
export function holder() {
  try {
    void window.parent.location.hash;
    return window.parent;
  } catch {
    return window; // embedded by a page of another origin
  }
}

/** What the address holds, the name of TensorBoard's tab first. */
export function parts() {
  return holder().location.hash.slice(1).split('&').filter((part) => part !== '');
}

/** What the address says, by name. */
export function readPlace() {
  const found = {};
  for (const part of parts()) {
    const [name, value] = part.split('=');
    if (!name.startsWith(PREFIX) || value === undefined) continue;
    try {
      found[name.slice(PREFIX.length)] = decodeURIComponent(value);
    } catch {
      // Somebody has written what is no address.
    }
  }
  return found;
}

/** Writes it, without a new entry in the browser's history. */
export function writePlace(values) {
  const window_ = holder();
  const kept = parts().filter((part) => !part.startsWith(PREFIX));
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== '') kept.push(`${PREFIX}${name}=${encodeURIComponent(value)}`);
  }
  try {
    window_.history.replaceState(window_.history.state, '', `#${kept.join('&')}`);
  } catch {
    // A page without an address of its own.
  }
}

/** Calls back whenever TensorBoard has reloaded its data (its button, and its own clock). */
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
