// Light or dark theme: TensorBoard's, or the system's if TensorBoard's is unknown.

const system = window.matchMedia('(prefers-color-scheme: dark)');
const listeners = [];

function host() {
  try {
    return window.parent === window ? null : window.parent.document.body;
  } catch {
    return null; // embedded by a page of another origin
  }
}

function apply() {
  const body = host();
  const dark = body === null ? system.matches : body.classList.contains('dark-mode');
  const before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  if (before !== undefined && before !== document.documentElement.dataset.theme) {
    for (const listener of listeners) listener();
  }
}

export function followTheme(onchange) {
  listeners.push(onchange);
  apply();
  const body = host();
  if (body === null) system.addEventListener('change', apply);
  else new MutationObserver(apply).observe(body, {attributeFilter: ['class']});
}

/** Value of a custom property of the style sheet; empty without one of that name. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const OTHERS = 4; // colours for strategies without their own

/** Colours by strategy name: its own, or the next of the shared ones. */
export function strategyColors(names) {
  let others = 0;
  return new Map(names.map((name) => {
    const own = color(`strategy-${name}`);
    if (own !== '') return [name, own];
    others += 1;
    return [name, color(`strategy-other-${1 + ((others - 1) % OTHERS)}`)];
  }));
}
